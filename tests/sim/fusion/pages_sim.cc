#include "pages_sim.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "clients/fusion/fusion_lease.h"
#include "clients/fusion/page_holds.h"
#include "clients/fusion/page_slots.h"
#include "page/page.h"
#include "transport/regions/region_memory.h"

namespace strata::sim {

using clients::FusionLease;
using clients::PageHolds;
using clients::PageSlots;
using fusion::Pages;
using proto::kNoPageSlot;
using proto::PageCaller;
using proto::PageGiveUp;
using proto::PageGrant;
using proto::PageMode;
using proto::PageReport;
using transport::RegionOperation;

namespace {

constexpr uint8_t kServers = 3;
constexpr uint32_t kPageCount = 5;
constexpr uint32_t kSlotCount = 96;
constexpr uint32_t kThreads = 4;  // of a server
constexpr uint64_t kLeaseUs = 100'000;
constexpr uint64_t kRenewUs = 15'000;
constexpr uint64_t kTickUs = 5'000;
constexpr uint64_t kBeatUs = 15'000;
constexpr uint64_t kCallUs = 20'000;       // an answer does not come any more
constexpr uint64_t kStoredUs = 1'000'000;  // what is not in storage by then is nowhere
constexpr uint64_t kUnnumbered = uint64_t{1} << 63;
constexpr Epoch kEpoch{1};

constexpr PageId page_at(uint32_t number) noexcept { return PageId{256, number}; }

void fill(char* page, PageId id, uint64_t llsn) {
  std::memset(page, 0, kPageBytes);
  PageHeader* const header = header_of(page);
  header->format = kPageFormat;
  header->type = static_cast<uint8_t>(PageType::kTree);
  header->llsn = llsn;
  header->space = id.space;
  header->number = id.number;
  for (const uint32_t at : {512u, 5000u, 9000u, 16000u}) store_u64(page + at, mix64(llsn + at));
  seal_page(page);
}

}  // namespace

// --- the pool, as one server reaches it: by halves, slowly, while its process lives ---

class PagesSim::Slots final : public transport::RemoteRegion {
 public:
  using Run = std::function<void(std::function<void()>)>;
  Slots(PagesSim* sim, Run run_when_awake) : sim_(sim), run_(std::move(run_when_awake)) {}
  Status run(absl::Span<RegionOperation>, uint64_t) override { return error_unsupported(); }
  Status persist(uint64_t, uint64_t, uint64_t) override { return error_unsupported(); }
  void start(absl::Span<RegionOperation> batch, uint64_t, transport::RegionDone done) override {
    RegionOperation* const operation = batch.data();
    const auto shared = std::make_shared<transport::RegionDone>(std::move(done));
    // Nobody knows what has become of a put, which comes all the same: its bytes are its own.
    const bool unknown = operation->kind == RegionOperation::Kind::kPut && sim_->lost();
    auto bytes = std::make_shared<std::string>(operation->source);
    const uint64_t offset = operation->offset;
    if (operation->kind == RegionOperation::Kind::kPut) {
      const uint64_t more = unknown ? sim_->rng_.below(100'000) : 0;
      half(more, [=, this] {
        std::memcpy(sim_->pool_.data() + offset, bytes->data(), kPageBytes / 2);
        half(unknown ? sim_->rng_.below(20'000) : 0, [=, this] {
          std::memcpy(sim_->pool_.data() + offset + kPageBytes / 2, bytes->data() + kPageBytes / 2,
                      kPageBytes / 2);
          if (!unknown) (*shared)(ok_status());
        });
      });
      if (unknown)
        sim_->after(kCallUs, [=, this] { run_([=] { (*shared)(error_outcome_unknown()); }); });
      return;
    }
    half(0, [=, this] {
      std::memcpy(operation->target.data(), sim_->pool_.data() + offset, kPageBytes / 2);
      half(0, [=, this] {
        std::memcpy(operation->target.data() + kPageBytes / 2,
                    sim_->pool_.data() + offset + kPageBytes / 2, kPageBytes / 2);
        (*shared)(ok_status());
      });
    });
  }
  [[nodiscard]] bool truly_one_sided() const noexcept override { return true; }
  [[nodiscard]] uint64_t bytes() const noexcept override { return sim_->pool_.size(); }
  [[nodiscard]] uint64_t epoch() const noexcept override { return kEpoch.value; }

 private:
  void half(uint64_t more, std::function<void()> action) {
    sim_->after(sim_->delay() / 2 + more, [this, action = std::move(action)] { run_(action); });
  }
  PagesSim* const sim_;
  const Run run_;
};

// --- servers ---

class PagesSim::Server {
 public:
  Server(PagesSim* sim, NodeId id, uint64_t life)
      : sim_(sim),
        id_(id),
        life_(life),
        rate_(975 + sim->rng_.below(51)),
        offset_(sim->rng_.below(1'000'000)),
        lease_([this] { return local(); }),
        holds_({.cohort_max = 3, .ask_again_us = 30'000}, [this] { pump_soon(); }),
        region_(sim, [this](std::function<void()> action) { run_when_awake(std::move(action)); }) {}

  // It is silent only once it has not had a lease for a while.
  void begin() {
    last_lease_at = sim_->now_;
    beat();
  }

  [[nodiscard]] NodeId id() const noexcept { return id_; }
  [[nodiscard]] uint64_t life() const noexcept { return life_; }
  [[nodiscard]] uint64_t local() const noexcept { return offset_ + sim_->now_ * rate_ / 1000; }
  [[nodiscard]] std::string describe() const {
    return "life " + std::to_string(life_) + (dead ? ", dead" : "") + (serving ? ", serving" : "") +
           (joined_ ? ", joined" : "") + ", lease at " + std::to_string(last_lease_at) + ", " +
           std::to_string(holds_.holds()) + " holds, refused: " + refusal_;
  }
  uint64_t paused_until = 0, deaf_until = 0, mute_until = 0;
  uint64_t last_lease_at = 0;
  bool dead = false, fenced = false, sealed = false, released = false;
  bool serving = false;
  std::map<uint32_t, std::pair<uint64_t, uint64_t>> used;  // page -> reads, changes since the heal

  void run_when_awake(std::function<void()> action) {
    if (dead) return;
    if (sim_->now_ >= paused_until) return action();
    sim_->after(paused_until - sim_->now_,
                [this, action = std::move(action)] { run_when_awake(action); });
  }

  // --- from the memory node ---
  void heard(const Pages::Outgoing& out) {
    const bool unnumbered = sim_->mutation_ == PagesMutation::kUnnumberedGrant;
    if (const auto* grant = std::get_if<PageGrant>(&out.message)) {
      PageGrant mine = *grant;
      if (sim_->mutation_ == PagesMutation::kFloorWithoutPositions) mine.floor.scanned_to.clear();
      if (unnumbered) mine.number |= kUnnumbered;
      return holds_.granted(mine);
    }
    PageGiveUp give_up = std::get<PageGiveUp>(out.message);
    if (unnumbered) {
      give_up.number |= kUnnumbered;
      if (holds_.number(give_up.page) == 0) {  // "not held", and the grant will count
        ++sim_->counts_.crossings;
        const PageReport report{.page = give_up.page, .number = give_up.number, .gives_up = true};
        return report_once({report});
      }
    }
    holds_.asked_back(give_up);
  }

  // The first change that is in frames only (or on their way into a slot).
  [[nodiscard]] uint64_t oldest_in_frames() const {
    uint64_t oldest = sim_->streams_[id_.value].end;
    for (const auto& [page, frame] : frames_) {
      if (frame.dirty) oldest = std::min(oldest, frame.first);
      if (frame.writing) oldest = std::min(oldest, frame.writing_first);
    }
    return oldest;
  }

 private:
  struct Frame {
    bool ready = false, loading = false;
    bool dirty = false, writing = false;
    bool changed_here = false;
    uint64_t llsn = 0, first = 0, end = 0, writing_first = 0;
    std::vector<std::function<void()>> waiting;
  };
  class Waiting final : public PageHolds::Request {
   public:
    Waiting(Server* server, PageId page, PageMode mode, std::function<void()> then)
        : Request(page, mode), server_(server), then_(std::move(then)) {}
    void answered() noexcept override {
      server_->later(0, [this] { server_->wake(this); });
    }
    Server* const server_;
    std::function<void()> then_;
  };
  using Then = std::function<void()>;

  void later(uint64_t us, Then action) {
    sim_->after(us, [this, action = std::move(action)] { run_when_awake(action); });
  }
  [[nodiscard]] PageCaller caller() const { return {id_, life_, kEpoch}; }

  // A call to the memory node; `then` hears whether it was answered, and how.
  void call(std::function<Status()> action, std::function<void(const Status&)> then) {
    const bool away = sim_->now_ < mute_until || sim_->lost();
    const auto answered = std::make_shared<bool>(false);
    later(kCallUs, [=] {
      if (*answered) return;
      *answered = true;
      then(error_outcome_unknown());
    });
    if (away) return;
    const auto arrives = [=, this] {
      const Status status = action();
      sim_->send_outgoing();
      if (sim_->now_ < deaf_until || sim_->lost()) return;
      later(sim_->delay(), [=] {
        if (*answered) return;
        *answered = true;
        then(status);
      });
    };
    sim_->after(sim_->delay(), arrives);
    if (sim_->faulty() && sim_->rng_.one_in(15)) sim_->after(sim_->delay(), arrives);
  }

  // --- membership ---
  void beat() {
    if (dead) return;
    run_when_awake([this] {
      if (ended_) return;
      const uint64_t asked_us = local();
      const uint64_t heard = fences_heard_;
      const auto lease_us = std::make_shared<uint64_t>(0);
      call(
          [=, this]() -> Status {
            const uint64_t now = sim_->now_;
            if (!joined_ || sim_->servers_[id_.value].get() == this) {
              STRATA_RETURN_IF_ERROR(sim_->authority_->join(id_, life_, now));
              STRATA_RETURN_IF_ERROR(sim_->pages_->joined(id_, life_));
            }
            proto::Heartbeat beat;
            beat.server = id_;
            beat.life = life_;
            beat.epoch = kEpoch;
            beat.fences_heard = heard;
            STRATA_ASSIGN_OR_RETURN(*lease_us, sim_->authority_->renew(beat, now));
            return ok_status();
          },
          [=, this](const Status& status) {
            if (!status.ok()) {
              refusal_ = std::string(status.message());
              return;
            }
            for (const proto::Fence& fence : sim_->authority_->fences_above(fences_heard_))
              fences_heard_ = std::max(fences_heard_, fence.number);
            lease_.granted(kEpoch, asked_us, *lease_us);
            last_lease_at = sim_->now_;
            if (joined_) return;
            joined_ = true;
            adopt();
          });
    });
    run_when_awake([this] { holds_.repeat(local()); });
    sim_->after(kBeatUs, [this] { beat(); });
  }
  void end(const Status& status) {
    if (ended_) return;
    ended_ = true;
    refusal_ = std::string(status.message());
    holds_.end(status);
  }

  // --- what an earlier life left (FP3) ---
  void adopt() {
    const auto dead_pages = std::make_shared<std::vector<Pages::DeadPage>>();
    call(
        [=, this] {
          const Status status = sim_->pages_->adopt(caller(), id_);
          *dead_pages = sim_->pages_->dead_pages(id_);
          return is_not_found(status) ? ok_status() : status;
        },
        [=, this](const Status& status) {
          if (is_fenced(status)) return end(status);
          if (!status.ok()) return later(5'000, [this] { adopt(); });
          const auto& changes = sim_->streams_[id_.value].changes;
          if (!changes.empty()) llsn_ = std::max(llsn_, changes.back().second.llsn);
          holds_.redo(true);
          if (sim_->mutation_ == PagesMutation::kReleaseWithoutRedo) return adopted();
          if (sim_->storage_replays_) {  // FP7
            log_found_ = sim_->streams_[id_.value].durable;
            return adopted();
          }
          auto pages = std::make_shared<std::vector<PageId>>();
          for (const Pages::DeadPage& page : *dead_pages) pages->push_back(page.page);
          redo(pages);
        });
  }
  void redo(const std::shared_ptr<std::vector<PageId>>& pages) {
    if (pages->empty()) return adopted();
    const PageId page = pages->back();
    pages->pop_back();
    acquire(page, PageMode::kExclusive, [=, this] {
      ensure_frame(page, [=, this] {
        if (sealed)
          return;  // another life redoes it, and writes that log by now; this one will hear
        Frame& frame = frames_[page];
        for (const auto& [of, change] : sim_->streams_[id_.value].changes) {
          if (of != page || change.llsn <= frame.llsn) continue;
          if (change.prev != frame.llsn)
            sim_->fail("FY3: redo finds page " + std::to_string(page.number) + " at llsn " +
                       std::to_string(frame.llsn) + ", the log goes on from " +
                       std::to_string(change.prev));
          touch(&frame, change.llsn, change.start, change.end);
          ++sim_->counts_.redone;
        }
        const auto next = [=, this] {
          holds_.release(page);
          redo(pages);
        };
        if (!frame.dirty) return next();
        publish(page, next);
      });
    });
  }
  void adopted() {
    proto::StreamPosition log_end{StreamId{id_.value}, Lsn{log_found_}};
    if (sim_->mutation_ == PagesMutation::kReleaseWithoutEnd) log_end = {};
    call([=, this] { return sim_->pages_->adoption_ended(caller(), id_, log_end); },
         [=, this](const Status& status) {
           if (is_fenced(status)) return end(status);
           if (!status.ok()) return later(5'000, [this] { adopted(); });
           if (serving) return;
           holds_.redo(false);
           serving = true;
           holds_.serve(true);
           for (uint32_t i = 0; i < kThreads; ++i) work();
           background();
         });
  }

  // --- threads ---
  void acquire(PageId page, PageMode mode, Then then) {
    auto request = std::make_unique<Waiting>(this, page, mode, std::move(then));
    Waiting* const waiting = request.get();
    waiting_[waiting] = std::move(request);
    if (holds_.acquire(waiting, local())) later(0, [=, this] { wake(waiting); });
    pump_soon();
  }
  void wake(Waiting* waiting) {
    const auto it = waiting_.find(waiting);
    const std::unique_ptr<Waiting> request = std::move(it->second);
    waiting_.erase(it);
    if (request->status.ok()) request->then_();
  }
  void work() {
    if (ended_) return;
    later(sim_->rng_.below(6'000), [this] {
      const uint32_t first = static_cast<uint32_t>(sim_->rng_.below(kPageCount));
      const bool writes = sim_->rng_.one_in(2);
      const PageId page = page_at(first);
      const PageMode mode = writes ? PageMode::kExclusive : PageMode::kShared;
      with(page, mode, [=, this](const Then& end) {
        const uint32_t rest = kPageCount - 1 - first;
        if (!writes && sim_->mutation_ == PagesMutation::kConversion && sim_->rng_.one_in(4))
          return with(page, PageMode::kExclusive, [=, this](const Then& end_second) {
            end_second();
            end();
            work();
          });
        if (rest == 0 || !sim_->rng_.one_in(3)) {
          end();
          return work();
        }
        // Latches are coupled: the next page's, further to the right, before this one's goes.
        const PageId next = page_at(first + 1 + static_cast<uint32_t>(sim_->rng_.below(rest)));
        with(next, sim_->rng_.one_in(2) ? PageMode::kExclusive : PageMode::kShared,
             [=, this](const Then& end_second) {
               end();
               end_second();
               work();
             });
      });
    });
  }
  // Uses the page, and goes on holding it until `then` calls what it is given.
  void with(PageId page, PageMode mode, std::function<void(const Then&)> then) {
    acquire(page, mode, [=, this] {
      ensure_frame(page, [=, this] {
        use(page, mode);
        later(sim_->rng_.below(1'500), [=, this] {
          if (sim_->rng_.one_in(2)) use(page, mode);
          then([=, this] { holds_.release(page); });
        });
      });
    });
  }
  void use(PageId page, PageMode mode) {
    Frame& frame = frames_[page];
    if (!frame.ready) return;  // redone by nobody: a broken rule's
    const bool answers = lease_.valid(kEpoch);
    // What it changed itself after its log was sealed nobody hears of.
    const bool counts = !sealed || (answers && !frame.changed_here);
    if (counts && (answers || !released) && frame.llsn != sim_->newest(page))
      sim_->fail("FY1: server " + std::to_string(id_.value) + " uses page " +
                 std::to_string(page.number) + " at llsn " + std::to_string(frame.llsn) +
                 ", the newest is " + std::to_string(sim_->newest(page)));
    const bool writes = mode == PageMode::kExclusive && sim_->rng_.one_in(2);
    if (answers) ++(writes ? sim_->counts_.changes : sim_->counts_.reads);
    if (answers && !sim_->faulty()) ++(writes ? used[page.number].second : used[page.number].first);
    if (!writes) return;
    llsn_ = std::max(llsn_, frame.llsn) + 1;
    Stream& stream = sim_->streams_[id_.value];
    Change change{llsn_, frame.llsn, id_.value, stream.end, stream.end + 10 + sim_->rng_.below(9)};
    touch(&frame, llsn_, change.start, change.end);
    frame.changed_here = true;
    if (sealed) return;
    stream.end = change.end;
    stream.changes.emplace_back(page, change);
    sim_->chains_[page].push_back(change);
  }
  static void touch(Frame* frame, uint64_t llsn, uint64_t start, uint64_t end) {
    if (!frame->dirty) frame->first = start;
    frame->dirty = true;
    frame->llsn = llsn;
    frame->end = end;
  }

  // --- frames ---
  void ensure_frame(PageId page, Then then) {
    Frame& frame = frames_[page];
    if (frame.ready) return then();
    frame.waiting.push_back(std::move(then));
    if (frame.loading) return;
    frame.loading = true;
    load(page);
  }
  void load(PageId page) {
    const PageHolds::Version version = holds_.version(page);
    if (!version.known || version.slot == kNoPageSlot) return load_stored(page, version);
    struct Get {
      std::vector<char> bytes = std::vector<char>(kPageBytes);
      RegionOperation operation;
    };
    const auto get = std::make_shared<Get>();
    get->operation = PageSlots::get(version.slot, get->bytes.data());
    region_.start(absl::MakeSpan(&get->operation, 1), 0, [=, this](const Status&) {
      if (!PageSlots::check(get->bytes.data(), page, version.llsn).ok())
        return load_stored(page, version);
      ++sim_->counts_.gets;
      loaded(page, version.llsn.value);
    });
  }
  // `from`: since when nothing keeps storage from getting it.
  void load_stored(PageId page, const PageHolds::Version& version, uint64_t from = 0) {
    if (from == 0) from = std::max(sim_->now_, kFaultsUntilUs);
    later(sim_->delay(), [=, this] {
      if (ended_) return;
      const uint64_t found =
          sim_->storage_replays_ ? sim_->made_by_storage(page) : sim_->stored_[page];
      bool is_there = !version.known || found >= version.llsn.value;
      if (sim_->storage_replays_) {
        is_there &= sim_->streams_[id_.value].scanned >= log_found_;
        for (const proto::StreamPosition& at : version.floor.scanned_to)
          is_there &= sim_->streams_[at.stream.value].scanned >= at.lsn.value;
      }
      if (!is_there) {  // it may come
        if (sim_->now_ > from + kStoredUs && !released)
          sim_->fail("FY1: page " + std::to_string(page.number) + " at llsn " +
                     std::to_string(version.llsn.value) + " is nowhere");
        return load_stored(page, version, from);
      }
      ++sim_->counts_.stored_reads;
      loaded(page, found);
    });
  }
  void loaded(PageId page, uint64_t llsn) {
    Frame& frame = frames_[page];
    frame.ready = true;
    frame.loading = false;
    frame.llsn = llsn;
    llsn_ = std::max(llsn_, llsn);
    for (Then& then : std::exchange(frame.waiting, {})) then();
  }

  // --- log, slots ---
  void persist(Then then) {
    const uint64_t end = sim_->streams_[id_.value].end;
    later(sim_->delay(), [=, this] {
      if (sealed) return;  // and fenced: it will hear
      Stream& stream = sim_->streams_[id_.value];
      stream.durable = std::max(stream.durable, end);
      then();
    });
  }
  void get_slots() {
    if (asking_slots_) return;
    asking_slots_ = true;
    const auto slots = std::make_shared<std::vector<uint32_t>>();
    const uint64_t request = slots_request_ + 1;
    call(
        [=, this]() -> Status {
          STRATA_ASSIGN_OR_RETURN(*slots, sim_->pages_->take_slots(caller(), request, 4));
          return ok_status();
        },
        [=, this](const Status& status) {
          asking_slots_ = false;
          if (is_fenced(status)) return end(status);
          if (!status.ok()) return;
          slots_request_ = request;
          slots_.add(*slots);
        });
  }
  // Until it is there; `then` hears of the slot.
  void put(PageId page, uint64_t llsn, std::function<void(uint32_t)> then) {
    if (ended_) return;
    if (sim_->storage_replays_ && sim_->rng_.one_in(3)) return then(kNoPageSlot);
    const std::optional<uint32_t> slot =
        lease_.valid(kEpoch) ? slots_.take() : std::nullopt;  // FU3
    if (!slot.has_value()) {
      get_slots();
      return later(3'000, [=, this] { put(page, llsn, then); });
    }
    struct Put {
      std::vector<char> bytes = std::vector<char>(kPageBytes);
      RegionOperation operation;
    };
    const auto put_state = std::make_shared<Put>();
    fill(put_state->bytes.data(), page, llsn);
    put_state->operation = PageSlots::put(*slot, put_state->bytes.data());
    const bool early = sim_->mutation_ == PagesMutation::kGrantBeforePut;
    region_.start(absl::MakeSpan(&put_state->operation, 1), 0,
                  [=, this, keep = put_state](const Status& status) {
                    if (early) return;
                    if (status.ok()) return then(*slot);
                    if (sim_->mutation_ == PagesMutation::kLostPutSlotReused) slots_.add({*slot});
                    later(1'000, [=, this] { put(page, llsn, then); });
                  });
    if (early) then(*slot);
  }
  // What is in the frame now, as the page's version; `then` when the memory node knows.
  void publish(PageId page, Then then) {
    Frame& frame = frames_[page];
    frame.writing = true;
    frame.writing_first = frame.first;
    frame.dirty = false;
    PageReport version{.page = page,
                       .llsn = Llsn{frame.llsn},
                       .stream = StreamId{id_.value},
                       .first = Lsn{frame.first},
                       .end = Lsn{frame.end}};
    ++sim_->counts_.published;
    const auto durable = [=, this] {
      put(page, version.llsn.value, [=, this](uint32_t slot) {
        PageReport with_slot = version;
        with_slot.slot = slot;
        if (holds_.number(page) == 0) return;         // ended
        (void)holds_.put(with_slot, holds_.epoch());  // of this epoch: noted
        report_until_answered({*holds_.unreported(page)}, [=, this] {
          holds_.reported(with_slot);
          frames_[page].writing = false;
          then();
        });
      });
    };
    if (sim_->mutation_ == PagesMutation::kPutBeforeLog)
      durable();
    else
      persist(durable);
  }

  // --- saying so ---
  void pump_soon() {
    if (pumping_) return;
    pumping_ = true;
    later(0, [this] {
      pumping_ = false;
      pump();
    });
  }
  void pump() {
    if (ended_) return;
    const auto not_held = holds_.take_not_held();
    if (!not_held.empty()) report_once(not_held);
    const auto asks = holds_.take_asks();
    if (!asks.empty())
      call([=, this] { return sim_->pages_->ask(caller(), asks, sim_->now_); },
           [this](const Status& status) {
             if (is_fenced(status)) end(status);
           });
    const auto ready = holds_.take_ready(4);
    if (!ready.empty()) give_up(ready);
  }
  Status report_now(std::vector<PageReport> reports) {
    for (PageReport& report : reports) report.number &= ~kUnnumbered;
    const Status status = sim_->pages_->report(caller(), reports, sim_->now_);
    if (is_invalid_argument(status))
      sim_->fail("a report is refused: " + std::string(status.message()));
    return status;
  }
  void report_once(const std::vector<PageReport>& reports) {
    call([=, this] { return report_now(reports); }, [](const Status&) {});
  }
  void report_until_answered(const std::vector<PageReport>& reports, Then then) {
    if (ended_) return;
    call([=, this] { return report_now(reports); },
         [=, this](const Status& status) {
           if (status.ok()) return then();
           if (is_fenced(status)) return end(status);
           later(2'000, [=, this] { report_until_answered(reports, then); });
         });
  }
  // FU22: one persist, then the puts, then one report.
  void give_up(const std::vector<PageHolds::Ready>& ready) {
    for (const PageHolds::Ready& page : ready)
      if (frames_[page.page].writing)
        return later(1'000, [=, this] {
          if (!ended_) give_up(ready);
        });
    std::vector<PageId> dirty;
    for (const PageHolds::Ready& page : ready)
      if (frames_[page.page].dirty) dirty.push_back(page.page);
    const auto reported = [=, this] {
      std::vector<PageReport> reports;
      for (const PageHolds::Ready& page : ready) reports.push_back(holds_.last_report(page.page));
      report_until_answered(reports, [=, this] {
        for (const PageHolds::Ready& page : ready) {
          frames_.erase(page.page);
          ++sim_->counts_.given_up;
          holds_.given_up(page.page, local());
        }
      });
    };
    if (dirty.empty()) return reported();
    const auto left = std::make_shared<size_t>(dirty.size());
    const auto durable = [=, this] {
      for (const PageId page : dirty) {
        const Frame& frame = frames_[page];
        PageReport version{.page = page,
                           .llsn = Llsn{frame.llsn},
                           .stream = StreamId{id_.value},
                           .first = Lsn{frame.first},
                           .end = Lsn{frame.end}};
        put(page, frame.llsn, [=, this](uint32_t slot) {
          PageReport with_slot = version;
          with_slot.slot = slot;
          if (!ended_) (void)holds_.put(with_slot, holds_.epoch());
          if (sim_->mutation_ == PagesMutation::kCheckpointWithoutReports)
            frames_[page].dirty = false;
          if (--*left == 0 && !ended_) reported();
        });
      }
    };
    if (sim_->mutation_ == PagesMutation::kPutBeforeLog)
      durable();
    else
      persist(durable);
  }

  // --- in the background ---
  void background() {
    if (ended_) return;
    later(2'000 + sim_->rng_.below(4'000), [this] {
      const PageId page = page_at(static_cast<uint32_t>(sim_->rng_.below(kPageCount)));
      const auto it = frames_.find(page);
      const bool idle = it != frames_.end() && it->second.ready && !it->second.writing &&
                        holds_.number(page) != 0 && !holds_.is_giving_up(page);
      if (idle && it->second.dirty && !ended_) {
        publish(page, [] {});
      } else if (idle && !it->second.dirty && sim_->rng_.one_in(3)) {
        // Evicted; who has a reference reads it again.
        if (it->second.waiting.empty() && holds_.try_acquire(page, PageMode::kShared)) {
          holds_.release(page);
          drop_unless_used(page);
        }
      }
      if (sim_->rng_.one_in(4) && !sealed) persist([] {});
      pump();
      background();
    });
  }
  void drop_unless_used(PageId page) {
    holds_.forget(page);
    if (holds_.seems_held(page, PageMode::kShared)) return;  // somebody uses it
    frames_.erase(page);
  }

  PagesSim* const sim_;
  const NodeId id_;
  const uint64_t life_;
  const uint64_t rate_, offset_;
  FusionLease lease_;
  PageHolds holds_;
  PageSlots slots_;
  Slots region_;
  std::map<PageId, Frame> frames_;
  std::map<Waiting*, std::unique_ptr<Waiting>> waiting_;
  bool joined_ = false, ended_ = false, pumping_ = false, asking_slots_ = false;
  uint64_t llsn_ = 0, fences_heard_ = 0, slots_request_ = 0;
  uint64_t log_found_ = 0;  // where its log ended, if storage replays
  std::string refusal_;
};

// --- what is true ---

uint64_t PagesSim::newest(PageId page) const {
  const auto it = chains_.find(page);
  return it == chains_.end() || it->second.empty() ? 0 : it->second.back().llsn;
}

// What is not durable has never been.
void PagesSim::seal(uint8_t server) {
  Stream& stream = streams_[server];
  while (!stream.changes.empty() && stream.changes.back().second.end > stream.durable) {
    const auto [page, change] = stream.changes.back();
    stream.changes.pop_back();
    std::vector<Change>& chain = chains_[page];
    if (chain.back().llsn != change.llsn || chain.back().server != server)
      fail("FY2: page " + std::to_string(page.number) + " was changed again upon llsn " +
           std::to_string(change.llsn) + ", which is not durable");
    std::erase_if(chain, [&](const Change& c) { return c.llsn == change.llsn; });
  }
  stream.end = stream.durable;
}

uint64_t PagesSim::made_by_storage(PageId page) const {
  const auto it = chains_.find(page);
  if (it == chains_.end()) return 0;
  uint64_t made = 0;
  for (const Change& change : it->second) {
    if (change.end > streams_[change.server].scanned) break;
    made = change.llsn;
  }
  return made;
}

void PagesSim::check_checkpoints() {
  after(4'000 + rng_.below(4'000), [this] { check_checkpoints(); });
  for (uint8_t s = 1; s <= kServers; ++s) {
    const Server* const server = servers_[s].get();
    if (!server->serving || server->sealed || server->dead) continue;
    const uint64_t frames = server->oldest_in_frames();
    const uint64_t life = server->life();
    after(delay(), [=, this] {  // FU17: after the frames
      const Server* const now = servers_[s].get();
      if (now->life() != life || now->sealed) return;
      uint64_t checkpoint = frames;
      if (mutation_ != PagesMutation::kCheckpointWithoutDirectory)
        checkpoint = std::min(checkpoint, pages_->oldest(StreamId{s}).value);
      for (const auto& [page, change] : streams_[s].changes)
        if (change.start < checkpoint && change.llsn > stored_[page])
          fail("FY4: the log would be cut off at " + std::to_string(checkpoint) +
               ", and storage lacks the change at " + std::to_string(change.start));
    });
  }
}

// --- the memory node ---

void PagesSim::send_outgoing() {
  for (const Pages::Outgoing& out : pages_->take_outgoing()) {
    Server* const server = servers_[out.server.value].get();
    const auto arrives = [=, this] {
      if (now_ < server->deaf_until || server->life() != out.life) return;
      server->run_when_awake([=] { server->heard(out); });
    };
    if (!lost()) after(delay(), arrives);
    if (faulty() && rng_.one_in(15)) after(delay(), arrives);
  }
}

void PagesSim::tick() {
  after(kTickUs, [this] { tick(); });
  if (const auto append = authority_->next_append(now_); append.has_value())
    authority_->append_durable(append->number);
  pages_->tick(now_);
  if (rng_.one_in(3)) {
    const uint64_t before = pages_->counters().dropped;
    pages_->trim(rng_.below(3));
    counts_.dropped += pages_->counters().dropped - before;
  }
  if (const std::string wrong = pages_->check(); !wrong.empty()) fail(wrong);
  send_outgoing();
}

void PagesSim::write_some() {
  after(1'000 + rng_.below(faulty() ? write_back_us_ : 5'000), [this] { write_some(); });
  if (storage_replays_) {
    for (Stream& stream : streams_)
      if (rng_.one_in(2) || !faulty())
        stream.scanned += rng_.below(stream.durable - std::min(stream.durable, stream.scanned) + 1);
    return;
  }
  for (const Pages::Write& write : pages_->begin_writes(1 + static_cast<uint32_t>(rng_.below(3)))) {
    const char* const bytes = pool_.data() + uint64_t{write.slot} * kPageBytes;
    if (!PageSlots::check(bytes, write.page, write.llsn).ok())
      fail("FY5: slot " + std::to_string(write.slot) + " has not the version that it should have");
    after(delay(), [=, this] {
      const bool ok = !rng_.one_in(6);
      uint64_t& stored = stored_[write.page];
      if (ok) stored = std::max(stored, write.llsn.value);
      pages_->write_ended(write, ok);
    });
  }
}

// --- the world ---

PagesSim::PagesSim(uint64_t seed, PagesMutation mutation, bool storage_replays)
    : rng_(seed),
      mutation_(mutation),
      storage_replays_(storage_replays),
      write_back_us_(rng_.one_in(3) ? 150'000 : 5'000),
      patience_us_(rng_.one_in(3) ? kLeaseUs / 3 : 3 * kLeaseUs),
      pool_(uint64_t{kSlotCount} * kPageBytes) {
  servers_.resize(kServers + 1);
}
PagesSim::~PagesSim() = default;

uint64_t PagesSim::delay() {
  if (faulty() && rng_.one_in(60)) return rng_.below(40'000);
  return 20 + rng_.below(1'000);
}

bool PagesSim::may_put(NodeId server, uint64_t life) const {
  return std::any_of(graveyard_.begin(), graveyard_.end(), [&](const auto& one) {
    return one->id() == server && one->life() == life && !one->dead;
  });
}

// Fences who is silent; its next life adopts its place.
void PagesSim::supervise() {
  after(3'000, [this] { supervise(); });
  for (uint8_t number = 1; number <= kServers; ++number) {
    const NodeId id{number};
    Server* const server = servers_[number].get();
    const auto& members = authority_->durable().members;
    const auto member = std::find_if(members.begin(), members.end(),
                                     [&](const fusion::Member& m) { return m.server == id; });
    if (member != members.end() && member->life != server->life()) {
      // An earlier life that came in late: nothing of it is left.
      authority_->fence(id).IgnoreError();  // it is there
      if (!authority_->may_release(id, now_)) continue;
      const uint64_t life = member->life;
      pages_->fence(id);
      pages_->release_fenced(id);
      // Unless it may still put: then that is said when it ends.
      if (!may_put(id, life)) pages_->mapping_gone(id, life);
      authority_->forget(id);
      continue;
    }
    if (member == members.end()) {
      if (!server->dead) continue;  // it comes
      graveyard_.push_back(std::move(servers_[number]));
      servers_[number] = std::make_unique<Server>(this, id, ++last_life_);
      servers_[number]->begin();
      continue;
    }
    const uint64_t patience_us = faulty() ? patience_us_ : 3 * kLeaseUs;
    const bool silent =
        server->dead || (server->last_lease_at + patience_us < now_ && rng_.one_in(10));
    if (member->fence == 0) {
      if (!silent) continue;
      if (!server->fenced) ++counts_.fences;
      server->fenced = true;
      authority_->fence(id).IgnoreError();  // it is there
      continue;
    }
    if (!server->sealed) {
      server->sealed = true;
      seal(number);
      pages_->fence(id);
    }
    const bool at_once = mutation_ == PagesMutation::kReleaseBeforeTheLease;
    if (!at_once && !authority_->may_release(id, now_)) continue;
    pages_->release_fenced(id);
    send_outgoing();
    server->released = true;
    authority_->forget(id);
    // What is left of it may wake up, and put, until somebody ends it.
    const uint64_t life = server->life();
    graveyard_.push_back(std::move(servers_[number]));
    if (mutation_ == PagesMutation::kSlotsFreeBeforeTheMapping) pages_->mapping_gone(id, life);
    after(rng_.below(200'000), [=, this] {
      server->dead = true;
      pages_->mapping_gone(id, life);
    });
    servers_[number] = std::make_unique<Server>(this, id, ++last_life_);
    servers_[number]->begin();
  }
}

void PagesSim::next_fault() {
  after(10'000 + rng_.below(100'000), [this] {
    if (!faulty()) return;
    one_fault();
    next_fault();
  });
}

void PagesSim::one_fault() {
  Server* const server = servers_[1 + rng_.below(kServers)].get();
  switch (rng_.below(5)) {
    case 0:
      server->dead = true;
      break;
    case 1:
    case 2:
      server->paused_until = now_ + rng_.below(5 * kLeaseUs);
      break;
    case 3:
      server->deaf_until = now_ + rng_.below(3 * kLeaseUs);
      break;
    default:
      server->mute_until = now_ + rng_.below(3 * kLeaseUs);
      break;
  }
}

void PagesSim::run_until(uint64_t us) {
  while (!queue_.empty() && queue_.top().at <= us && failure_.empty()) {
    Event event = queue_.top();
    queue_.pop();
    now_ = event.at;
    event.action();
  }
}

// Whom chance has not led to each page, for reading and for changing, since faults ended.
std::string PagesSim::missing_use() const {
  for (uint8_t s = 1; s <= kServers; ++s) {
    for (uint32_t page = 0; page < kPageCount; ++page) {
      const auto it = servers_[s]->used.find(page);
      if (it != servers_[s]->used.end() && it->second.first > 0 && it->second.second > 0) continue;
      return "server " + std::to_string(s) + " does not come to page " + std::to_string(page) +
             ": " + servers_[s]->describe();
    }
  }
  return "";
}

std::string PagesSim::run() {
  authority_.emplace(fusion::AuthorityOptions{.lease_us = kLeaseUs, .renew_us = kRenewUs}, kEpoch,
                     std::nullopt, 0);
  fusion::PagesOptions options;
  options.slots = kSlotCount;
  options.shards = 2;
  options.storage_replays = storage_replays_;
  options.ask_again_us = 15'000;
  pages_.emplace(options, kEpoch);
  for (uint8_t s = 1; s <= kServers; ++s)
    servers_[s] = std::make_unique<Server>(this, NodeId{s}, ++last_life_);
  tick();
  for (uint8_t s = 1; s <= kServers; ++s) servers_[s]->begin();
  supervise();
  write_some();
  if (!storage_replays_) check_checkpoints();
  next_fault();
  run_until(kEndUs);
  for (uint64_t until = kEndUs; until < kPatienceEndsUs && !missing_use().empty();)
    run_until(until += 100'000);
  if (const std::string missing = missing_use(); !missing.empty()) fail("FY6: " + missing);
  for (const auto& [page, chain] : chains_)
    for (size_t i = 1; i < chain.size(); ++i)
      if (chain[i].prev != chain[i - 1].llsn) fail("FY2: a chain has a gap");
  return failure_;
}

}  // namespace strata::sim
