// GetPage as a compute node does it: StoragePageSource over TCP on loopback, to whole storage
// nodes that have materialized the pages. Its median is what a miss in compute's pool costs when
// nothing needs replay. The limit is the same exchange by plain blocking sockets.
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <vector>

#include "base/diag.h"
#include "base/testing/wait_until.h"
#include "micro.h"
#include "storage_cluster.h"
#include "transport/clock.h"
#include "transport/sockets/socket.h"

namespace strata::micro {
namespace {

using engine::Isolation;
using engine::testing::Row;

constexpr uint64_t kRows = 4000;
constexpr uint32_t kNumbersMax = 500;  // of pages in a space

std::string free_tcp_address() {
  transport::SocketAddress address = *transport::parse_address("tcp:127.0.0.1:0");
  const transport::FileDescriptor one(::socket(AF_INET, SOCK_STREAM, 0));
  STRATA_ASSERT(::bind(one.get(), address.get(), address.bytes) == 0);
  sockaddr_in bound{};
  socklen_t bytes = sizeof bound;
  STRATA_ASSERT(::getsockname(one.get(), reinterpret_cast<sockaddr*>(&bound), &bytes) == 0);
  return "tcp:127.0.0.1:" + std::to_string(ntohs(bound.sin_port));
}

// A database of a few hundred pages on three storage nodes.
class Storage {
 public:
  Storage() {
    set_diag_sink([](Severity, std::string_view) {});
    for (int i = 0; i < 3; ++i) around_.addresses.push_back(free_tcp_address());
    static int made = 0;  // a benchmark runs several times, to find out how often to measure
    const std::string folder = directory() + "/cluster-" + std::to_string(made++) + "-node-";
    for (size_t i = 0; i < around_.addresses.size(); ++i)
      nodes_.push_back(std::make_unique<testing::StorageNode>(
          &around_, i, folder + std::to_string(i), "logdb-mv-sr"));
    for (const auto& node : nodes_) {  // workers leave nothing to whoever asks
      node->stop();
      node->options().pages.replay_lag_bytes = 0;
      node->start();
    }
    compute_ = std::make_unique<testing::ComputeNode>(&around_, "compute-1", "logdb-mv-sr");
    must(compute_->open());
    fill();
    wait_until_replayed();
    const auto spaces = compute_->source()->list_spaces();
    must(spaces.status());
    for (const SpaceId space : *spaces) note_pages(space);
    STRATA_ASSERT(pages_.size() > 50);
  }

  const std::vector<PageId>& pages() { return pages_; }
  Status read(PageId page, char* to) { return compute_->source()->read(page, Llsn{}, to); }

 private:
  void fill() {
    auto session = compute_->kernel()->new_session();
    session->begin(Isolation::kRepeatableRead);
    must(session->create_table(engine::testing::table_spec("t"), nullptr));
    must(session->commit());
    const engine::TableRef table = *session->open_table("test", "t");
    for (uint64_t id = 0; id < kRows; ++id) {
      session->begin(Isolation::kRepeatableRead);
      must(engine::testing::insert(session.get(), table, id, {id, 1, std::string(400, 'r'), ""}));
      must(session->commit());
    }
  }
  void wait_until_replayed() {
    for (const auto& node : nodes_) {
      const bool replayed = testing::wait_until([&] {
        const auto streams = node->pages()->status().streams;
        return !streams.empty() && streams[0].replayed.lsn == streams[0].durable;
      });
      STRATA_ASSERT(replayed);
      must(node->pages()->checkpoint());
    }
  }
  void note_pages(SpaceId space) {
    for (uint32_t number = 0; number < kNumbersMax; ++number) {  // not every one is in use
      const PageId page{space.value, number};
      const Status status = read(page, buffer_.bytes);
      if (!is_not_found(status)) must(status);
      if (status.ok()) pages_.push_back(page);
    }
  }

  testing::Surroundings around_;
  std::vector<std::unique_ptr<testing::StorageNode>> nodes_;
  std::unique_ptr<testing::ComputeNode> compute_;
  std::vector<PageId> pages_;
  PageBytes buffer_;
};

void get_page(benchmark::State& state) {
  Storage storage;
  PageBytes page;
  std::vector<uint64_t> ns;
  size_t next = 0;
  for (auto _ : state) {
    const uint64_t begin_ns = transport::monotonic_ns();
    must(storage.read(storage.pages()[next++ % storage.pages().size()], page.bytes));
    ns.push_back(transport::monotonic_ns() - begin_ns);
  }
  const auto middle = ns.begin() + static_cast<ptrdiff_t>(ns.size() / 2);
  std::nth_element(ns.begin(), middle, ns.end());
  state.counters["median_ns"] = static_cast<double>(*middle);
  state.SetLabel("limit: tcp_exchange_16k");
}
BENCHMARK(get_page)->Name("storage/get_page_tcp")->UseRealTime();

}  // namespace
}  // namespace strata::micro
