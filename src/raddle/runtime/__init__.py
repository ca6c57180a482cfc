"""Runs a plan: a program becomes the actions of one rank, an executor carries them out, a trainer calls it.

The modules, in the order in which data flows:

    build_actions       makes the actions of one rank from a program, with the classes in builders/:
      slot_table          which boxes of tensors the device holds, and in which slots
      persistent          slots of parameters, buffers and constants
      calls               segments and merges as generated functions of slots (codes, code_generator,
                          function_writer, native_calls, region_assembly)
      messages            sends, receives, and where each is waited for (acknowledgements)
      buckets, shards     all-reduces of gradients in buckets; reduce-scatters and all-gathers (ZeRO)
      slices              slices of parameters, which servers or all their holders update
      buffers             updates of module buffers
      versions            which weights a segment uses if steps overlap
      slot_lifetimes      when slots are emptied
    actions             the result: the actions of one rank on numbered slots
    delivery            all that depends on the kind of a message

    executor            passes each action to the part in execution/ that carries it out:
      store               the tensors and gradients of the slots (zero3: gathered parameters)
      input_feeder        inputs and random seeds
      segments            forward and backward (autograd_leaves, compiled_functions, random_generator)
      message_exchange    sending, receiving and waiting (early_receives)
      parameter_updater   gradient accumulation, all-reduce, one update per step; instead of it:
        sharded_parameter_updater      each rank updates its shards (ZeRO)
        sliced_parameter_updater       slices go to a synchroniser (parameter_sync, rank_slices)
        overlapping_parameter_updater  steps overlap (weight_stash, greedy)
      buffer_updates      updates of module buffers
      losses              the loss, on every rank

    trainer             what users call, `parallelize` and `Trainer`; its parts:
      setup               what is trained, and how to reach the other ranks
      capture_for_plan    the graph of a module for the inputs that a plan describes
      materialize         initial parameters, also of models on the meta device
      batches             the part of a batch that a rank reads
      step_runner         steps of the planned batch size, of another (resized_step), overlapping steps
      optimizer_step      loss check, gradient clipping (clipping), the optimizer's step
      state               saving and loading (checkpoint)
      evaluation          the forward in evaluation mode

    session             the main program `python -m raddle.runtime` (job, options, progress, step_times,
                        summary)
    recorder            when a rank carried out which action; from that, a trace (measured_trace, clocks)
    schedule_spans      when the actions of a pipeline schedule ran, for the verification
    threads             all ranks as threads of one process
    host_overhead       measures the time that communication takes from a rank that computes
"""
