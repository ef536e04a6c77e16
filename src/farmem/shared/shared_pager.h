// Memory that several processes share, mostly in a memory node: a file that they map, whose pages
// the kernel asks this process for. Two threads, because the kernel forgets a page only while
// somebody else can still answer it:
//
//   answerer  hears the kernel: reads and writes; decides (shared_pages.h). Waits for the node at
//             most, never for the kernel or the other thread.
//   forgetter has the kernel forget pages. Waits for the kernel, which waits for the answerer.
//
//   FM55  When the node is lost or silent, or the kernel does not forget a page for `stuck_us_max`,
//         `on_lost` is called once, with the reason, and every read is refused from then on: who
//         touches a page that is not local gets SIGBUS. Nobody waits for ever.
//   FM57  No thread of this process, nor of the node's, touches the file, mapped or not: a thread
//         that waits for a page may hold what the answerer needs to get memory for itself.
//   FM56  Nothing of the host is changed: the file has no name (FM45).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/latch.h"
#include "farmem/fuse/fuse_file.h"
#include "farmem/shared/shared_pages.h"

namespace strata::farmem {

struct SharedPagerOptions {
  PolicyOptions policy;
  uint64_t renew_us = 1'000'000;  // between signs of life
  uint64_t stuck_us_max = 30'000'000;
  PagerCounters* counters = nullptr;           // outlives the pager
  std::function<void(const Status&)> on_lost;  // in a thread of the pager's
};

// Pages of the file in the kernel's cache, as the kernel counts them. 0 where it is older than 6.5.
uint64_t cached_pages(int file);

class SharedPager {
 public:
  // A file of all pages of the client's region. Errors: those of FuseFile::make_unseen() and
  // SharedPages::make(), kResourceExhausted.
  static StatusOr<std::unique_ptr<SharedPager>> start(std::unique_ptr<MemoryClient> client,
                                                      const SharedPagerOptions& options);
  // Who still has the file mapped gets SIGBUS.
  ~SharedPager();
  SharedPager(const SharedPager&) = delete;
  SharedPager& operator=(const SharedPager&) = delete;

  // To be mapped with MAP_SHARED; the pager's own. Closed by exec, as it is.
  [[nodiscard]] int file() const noexcept { return file_fd_; }
  // A child of this process, which it does not wait for elsewhere (FM46).
  [[nodiscard]] pid_t guard() const noexcept { return fuse_->guard(); }
  [[nodiscard]] MemoryClient& client() const noexcept { return pages_->client(); }

 private:
  explicit SharedPager(const SharedPagerOptions& options) : options_(options) {}
  Status set_up(std::unique_ptr<MemoryClient> client);
  void start_threads();
  void answer_kernel();
  void hear_kernel();
  void hear_others();
  void send_away();
  void stay_alive();
  void post_leave(const Leave& leave);
  void wake() noexcept;
  void check_lost();

  const SharedPagerOptions options_;
  std::unique_ptr<FuseFile> fuse_;
  std::unique_ptr<SharedPages> pages_;  // the answerer's
  int file_fd_ = -1;
  int wake_fd_ = -1;
  bool told_ = false;   // on_lost has been called; the answerer's
  bool ended_ = false;  // the kernel has no use for the file any more; the answerer's
  std::vector<Leave> heard_;

  Mutex latch_{LatchRank::kLeaf};
  CondVar posted_;
  std::vector<Leave> to_leave_;   // under latch_
  std::vector<Leave> forgotten_;  // under latch_
  Status renewed_ = ok_status();  // under latch_
  bool stop_forgetting_ = false;  // under latch_
  std::atomic<bool> stop_answering_{false};
  Mutex life_latch_{LatchRank::kLeaf};
  CondVar stopping_;
  bool stop_living_ = false;  // under life_latch_
  std::thread answerer_;
  std::thread forgetter_;
  std::thread life_;
};

}  // namespace strata::farmem
