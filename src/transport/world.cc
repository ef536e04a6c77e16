#include "transport/world.h"

#include <utility>

#include "base/latch.h"

namespace strata::transport {

void run_and_wait(Executor* executor, Task task) {
  if (executor->in_thread()) return task();
  Parker done;
  executor->post([&done, task = std::move(task)]() mutable {
    task();
    task = nullptr;
    done.unpark(1);
  });
  done.wait();
}

}  // namespace strata::transport
