"""Runs a plan: a program becomes the actions of one rank, an executor carries them out, a trainer calls it.

In the order in which data flows:

    settle          goes through a program's instructions for one device; in settling/, what it asks:
      pieces          which boxes the device holds, and the slots that they are in
      lasting         slots of parameters, buffers and constants
      calls           segments and merges as functions of slots (code, function, natives, gathering)
      messages        sends, receives, and where each is waited for (answers, delivery)
      sums, slices    buckets of gradients; slices that a synchroniser updates
      buffers         when they take new values
      versions        which weights a segment uses where steps overlap
      releasing       when a slot is emptied
    actions         what comes out: the actions of one rank on numbered slots
    delivery        all that depends on the kind of a message, here and while it runs

    executor        hands each action to the part that carries it out; in executing/:
      store           the slots' tensors and gradients (wholes: parameters of ZeRO-3, gathered for a use)
      feeding         inputs and seeds
      segments        forward and backward (entering)
      messages        what is packed, sent, posted ahead and received (posting)
      parameters      gradients add up and are all-reduced, one update a step
        sliced          slices are handed to a synchroniser instead (agreeing, rows)
        overlapping     steps overlap: weights are updated one by one (weights, greedy)
      buffers         take new values
      losses          the loss, on every rank

    trainer         what users have, `parallelize` and `Trainer`, and its parts:
      setup           what is trained, and with whom
      capturing       the graph of a module for the inputs that a plan names
      materialize     tiles of a model on the meta device
      batches         the part of a batch that a rank reads
      stepping        steps of the planned size, of another (resized), and several that overlap
      updating        a finite loss, a clipped norm (clipping), the optimizer's step
      state           what is saved and loaded (checkpoint)
      evaluation      the forward in evaluation mode

    session         what `python -m raddle.runtime` does on a rank (job, options, progress, summary);
                    recording, tracing, spans and clocks: when a rank did what
    threads         all ranks as threads of one process
    host_overhead   measures what communication takes from a rank that computes
"""
