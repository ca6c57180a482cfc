// A stage of a pipeline that sleeps: an operator with a backward. After ten milliseconds of sleep caches are cold, so
// that to return takes 0.4 ms (in Python 0.6 ms): a stage wakes up earlier by what was measured of that before.
//
// x[n k] becomes y[n e], every element a block, or x[n e] becomes y[n k], the means of blocks; times a weight.
// Blocks are constant, so one element of each is written and read; with `whole` all of them are. Activations are
// memory that exists since before: making 32 MB anew takes longer than a stage sleeps, and is nobody's transfer.

#include <chrono>
#include <deque>
#include <map>
#include <thread>

#include <torch/torch.h>

using at::Tensor;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr double kLate = 0.2e-3;  // seconds by which a sleep may end late
constexpr int kRing = 10;         // activations of one size in turn; a step has 8 micro-batches

bool whole = false;
double forward_lead = 0, backward_lead = 0;  // seconds that a call takes beyond its sleep
int64_t forwards = 0, backwards = 0;

void sleep_until(Clock::time_point end) {
  std::this_thread::sleep_until(end - std::chrono::duration_cast<Clock::duration>(Seconds(kLate)));
  while (Clock::now() < end) std::this_thread::yield();
}

Clock::time_point in(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(Seconds(seconds));
}

Tensor warm(int64_t n, int64_t width) {
  static std::map<std::pair<int64_t, int64_t>, std::deque<Tensor>> rings;
  auto& ring = rings[{n, width}];
  if (ring.empty())
    for (int i = 0; i < kRing; i++) ring.push_back(at::ones({n, width}));
  ring.push_back(ring.front());
  ring.pop_front();
  return ring.back().detach();
}

Tensor resized(const Tensor& x, const Tensor& factor, int64_t width) {
  const int64_t n = x.size(0), k = x.size(1);
  if (width < k) {
    const Tensor blocks = x.view({n, width, k / width});
    return (whole ? blocks.mean(-1) : blocks.select(2, 0)) * factor;
  }
  const Tensor y = warm(n, width), blocks = y.view({n, k, width / k});
  (whole ? blocks : blocks.narrow(2, 0, 1)).copy_((x * factor).unsqueeze(2));
  return y;
}

Tensor stage_cpu(const Tensor& x, const Tensor& weight, int64_t width, double forward, double) {
  const auto end = in(forward - forward_lead);
  const Tensor y = resized(x, weight, width);
  forwards++;
  sleep_until(end);
  return y;
}

Tensor stage_meta(const Tensor& x, const Tensor&, int64_t width, double, double) {
  return at::empty({x.size(0), width}, x.options());
}

struct Stage : torch::autograd::Function<Stage> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, const Tensor& weight, int64_t width,
                        double forward, double backward) {
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({x, weight});
    ctx->saved_data["seconds"] = backward;
    static auto op = c10::Dispatcher::singleton()
                         .findSchemaOrThrow("raddle_bench::stage", "")
                         .typed<Tensor(const Tensor&, const Tensor&, int64_t, double, double)>();
    return op.call(x, weight, width, forward, backward);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto end = in(ctx->saved_data["seconds"].toDouble() - backward_lead);
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &grad = grads[0];
    at::AutoDispatchBelowADInplaceOrView below;
    // The adjoint of repeating is a sum, of a mean the share of each.
    const double size = double(x.size(1)) / double(grad.size(1));
    const Tensor of_x = resized(grad, weight / size, x.size(1));
    // Of the weight's effect on the first element alone, which costs nothing.
    const Tensor of_weight = (grad[0][0] * x[0][0]).reshape(weight.sizes());
    backwards++;
    sleep_until(end);
    return {of_x, of_weight, {}, {}, {}};
  }
};

Tensor stage_autograd(const Tensor& x, const Tensor& weight, int64_t width, double forward, double backward) {
  return Stage::apply(x, weight, width, forward, backward);
}

TORCH_LIBRARY(raddle_bench, m) {
  m.def("stage(Tensor x, Tensor weight, int width, float forward, float backward) -> Tensor");
  m.def("set_whole(bool value) -> ()", [](bool value) { whole = value; });
  m.def("set_leads(float forward, float backward) -> ()", [](double forward, double backward) {
    forward_lead = forward;
    backward_lead = backward;
  });
  m.def("calls() -> int[]", [] { return std::vector<int64_t>{forwards, backwards}; });
}
TORCH_LIBRARY_IMPL(raddle_bench, CPU, m) { m.impl("stage", stage_cpu); }
TORCH_LIBRARY_IMPL(raddle_bench, Meta, m) { m.impl("stage", stage_meta); }
TORCH_LIBRARY_IMPL(raddle_bench, Autograd, m) { m.impl("stage", stage_autograd); }
