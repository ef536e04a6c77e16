// Goal: timestamps and the table of transactions, read and written by many threads at once over a
// mapped region of another's, keep their promises: no timestamp twice; none that is given, and no
// snapshot, is older than what anybody had before it was asked for (FU5, FU6); a view never takes
// for undecided what has committed within it (T14, FU9). For TSan, too.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <latch>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/diag.h"
#include "base/rng.h"
#include "clients/fusion/fusion_lease.h"
#include "clients/fusion/oracle_client.h"
#include "clients/fusion/tit_reader.h"
#include "clients/fusion/tit_region.h"
#include "fusion/timestamps/time_service.h"
#include "proto/fusion.h"
#include "transport/calls/testing/io_node.h"
#include "transport/link_model.h"
#include "transport/regions/region_server.h"

namespace strata::clients {
namespace {

using transport::BlockingChannel;
using transport::Region;
using transport::RegionPath;
using transport::RegionServer;
using transport::RemoteRegion;
using transport::RpcServer;

constexpr uint64_t kSlots = 64;
constexpr uint64_t kTransactions = 20'000;
constexpr int kReaders = 3;
constexpr int kWriters = 2;
// A reader looks at least so often: on a busy machine the writers may be done before it has a core.
constexpr int kRounds = 100;

// The memory node's region and the owner's table, exposed over a unix socket and mapped by the
// other side, as on one host.
class Regions {
 public:
  // `link`: a slower way to the regions than there is; null: none.
  explicit Regions(std::shared_ptr<transport::LinkModel> link = nullptr) {
    set_diag_sink([](Severity, std::string_view) {});
    server_ = std::make_unique<RpcServer>(node_.world(), transport::test::secret_of('s'),
                                          transport::ServerOptions());
    regions_ = std::make_unique<RegionServer>(server_.get());
    address_ = *server_->listen("unix:" + (folder_ / "socket"));
    transport::BlockingChannelOptions options;
    options.link_model = std::move(link);
    channel_ =
        std::make_shared<BlockingChannel>(transport::test::secret_of('s'), address_, options);
  }
  ~Regions() { server_.reset(); }
  std::shared_ptr<Region> make(const std::string& name, uint64_t bytes) {
    std::shared_ptr<Region> region = *Region::create(folder_ / name, bytes, 1);
    regions_->expose(name, region);
    return region;
  }
  std::shared_ptr<RemoteRegion> open(const std::string& name) {
    auto opened = transport::open_remote_region(channel_, name, RegionPath::kMapped,
                                                monotonic_us() + 60'000'000);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return *std::move(opened);
  }

 private:
  transport::test::Folder folder_;
  transport::test::IoNode node_;
  std::unique_ptr<RegionServer> regions_;
  std::unique_ptr<RpcServer> server_;
  std::string address_;
  std::shared_ptr<BlockingChannel> channel_;
};

struct NoOwners final : TitOwners {
  Status join(NodeId, OwnTransactions*) override { return ok_status(); }
  void leave(NodeId) noexcept override {}
  StatusOr<TrxLookup> read(TrxId) override { return TrxLookup{}; }  // does not tell here
  StatusOr<TrxLookup> wait_decided(TrxId) override { return TrxLookup{}; }
};

struct Held final : LeaseCheck {
  [[nodiscard]] bool valid(Epoch epoch) const noexcept override { return epoch == Epoch{1}; }
  [[nodiscard]] Epoch epoch() const noexcept override { return Epoch{1}; }
};

void raise(std::atomic<uint64_t>* known, uint64_t value) {
  uint64_t before = known->load();
  while (before < value && !known->compare_exchange_weak(before, value)) {
  }
}

struct Seen {
  uint64_t sequence, snapshot;
};

TEST(FusionClientsThreads, TimestampsAndTransactionsOverAMappedRegion) {
  Regions regions;
  const auto times = regions.make("times", proto::kTimesBytes);
  const auto table = regions.make("tit", 4096);
  static_assert(TitRegion::bytes_of(kSlots) <= 4096);
  // A small step: the ceiling is met again and again.
  fusion::TimeServiceOptions options;
  options.oracle.step = 2000;
  fusion::TimeService service(options, Epoch{1}, std::nullopt, 0, times->data());
  std::atomic<bool> stop{false};
  std::thread memory_node([&] {
    while (!stop.load()) {
      const auto append = service.tick(monotonic_us());
      if (append.has_value()) service.append_durable(append->number);
      std::this_thread::yield();
    }
  });
  const Held lease;
  OracleClient writer_clock(&lease), reader_clock(&lease);  // of two servers
  writer_clock.use(regions.open("times"), Epoch{1});
  reader_clock.use(regions.open("times"), Epoch{1});
  TitRegion tit(table->data(), kSlots);
  NoOwners owners;
  TitReader reader(&lease, &owners, nullptr);
  reader.opened(NodeId{1}, regions.open("tit"), kSlots);

  std::vector<std::atomic<uint64_t>> cts_of(kTransactions + 1);  // 0: did not commit
  std::atomic<uint64_t> newest{0};                               // that anybody has been told
  std::atomic<uint64_t> last_sequence{0};
  std::mutex ids;
  std::array<bool, kSlots> busy = {};
  std::latch begin(kWriters + kReaders);
  std::vector<std::thread> threads;
  for (int w = 0; w < kWriters; ++w) {
    threads.emplace_back([&, w] {
      Rng rng(static_cast<uint64_t>(w) + 1);
      begin.arrive_and_wait();
      for (;;) {
        uint64_t sequence = 0;
        {
          const std::lock_guard lock(ids);
          do {
            sequence = last_sequence.load() + 1;
            if (sequence > kTransactions) return;
            last_sequence.store(sequence);
          } while (busy[sequence % kSlots]);
          busy[sequence % kSlots] = true;
          tit.claim(sequence, TrxState::kActive);
        }
        if (rng.one_in(8)) {
          tit.set(sequence, TrxState::kAborted, Cts{});
        } else {
          const uint64_t before = newest.load();
          tit.set(sequence, TrxState::kCommitting, Cts{});
          const auto cts = writer_clock.next();
          ASSERT_TRUE(cts.ok()) << cts.status();
          EXPECT_GT(cts->value, before);
          cts_of[sequence].store(cts->value);
          tit.set(sequence, TrxState::kCommitting, *cts);
          tit.set(sequence, TrxState::kCommitted, *cts);
          raise(&newest, cts->value);
        }
        const std::lock_guard lock(ids);
        busy[sequence % kSlots] = false;
      }
    });
  }
  std::vector<std::vector<Seen>> undecided(kReaders);
  std::atomic<uint64_t> decided{0};
  for (int r = 0; r < kReaders; ++r) {
    threads.emplace_back([&, r] {
      Rng rng(static_cast<uint64_t>(r) + 100);
      uint64_t own_last = 0;
      begin.arrive_and_wait();
      for (int round = 0; round < kRounds || last_sequence.load() < kTransactions; ++round) {
        const uint64_t before = newest.load();
        const auto snapshot = reader_clock.current();
        ASSERT_TRUE(snapshot.ok()) << snapshot.status();
        EXPECT_GE(snapshot->value, before);
        EXPECT_GE(snapshot->value, own_last);
        own_last = snapshot->value;
        for (int i = 0; i < 4; ++i) {
          const uint64_t last = last_sequence.load();
          if (last == 0) continue;
          const uint64_t sequence = last - rng.below(std::min<uint64_t>(last, 2 * kSlots));
          const auto found = reader.read(make_trx_id(NodeId{1}, sequence));
          ASSERT_TRUE(found.ok());
          if (found->state == TrxState::kActive || found->state == TrxState::kAborted) {
            undecided[static_cast<size_t>(r)].push_back({sequence, snapshot->value});
          } else if (found->state == TrxState::kCommitted) {
            EXPECT_EQ(found->cts.value, cts_of[sequence].load());
            decided.fetch_add(1);
          } else if (found->state == TrxState::kCommitting && !found->cts.is_zero()) {
            EXPECT_EQ(found->cts.value, cts_of[sequence].load());
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  stop.store(true);
  memory_node.join();

  std::vector<uint64_t> all;
  for (const auto& cts : cts_of)
    if (cts.load() != 0) all.push_back(cts.load());
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
  uint64_t looked = 0;
  for (const auto& list : undecided)
    for (const Seen& seen : list) {
      ++looked;
      const uint64_t cts = cts_of[seen.sequence].load();
      EXPECT_TRUE(cts == 0 || cts > seen.snapshot)
          << "transaction " << seen.sequence << " committed at " << cts << " within the snapshot "
          << seen.snapshot << " that took it for undecided";
    }
  EXPECT_GT(decided.load(), 0u);
  const auto per = [](const FetchCounters& c) {
    return static_cast<double>(c.fetches.load()) /
           static_cast<double>(c.views.load() + c.commits.load());
  };
  std::printf(
      "%zu commits, %llu looks at undecided ones, fetches per request: writers %.2f, readers "
      "%.2f\n",
      all.size(), static_cast<unsigned long long>(looked), per(writer_clock.counters()),
      per(reader_clock.counters()));
}

// FU6: over a link of 300 microseconds, readers and writers of one server share their round trips.
TEST(FusionClientsThreads, ManyShareARoundTrip) {
  Regions regions(std::make_shared<transport::LinkModel>(*transport::link_speed("10g")));
  const auto times = regions.make("times", proto::kTimesBytes);
  fusion::TimeService service({}, Epoch{1}, std::nullopt, 0, times->data());
  const auto append = service.tick(0);
  ASSERT_TRUE(append.has_value());
  service.append_durable(append->number);
  const Held lease;
  OracleClient clock(&lease);
  clock.use(regions.open("times"), Epoch{1});
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&clock, i] {
      for (int n = 0; n < 100; ++n) EXPECT_TRUE((i < 4 ? clock.next() : clock.current()).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  const FetchCounters& counters = clock.counters();
  EXPECT_EQ(counters.views.load(), 1200u);
  EXPECT_EQ(counters.commits.load(), 400u);
  EXPECT_EQ(*clock.current(), Cts{401});
  // A fetch at a time, and each takes all who wait: about an eighth to a sixteenth each.
  EXPECT_LT(counters.fetches.load(), 800u);
  std::printf("%llu fetches for 1,600 timestamps\n",
              static_cast<unsigned long long>(counters.fetches.load()));
}

}  // namespace
}  // namespace strata::clients
