// Goal: whatever order messages arrive in, however often, and whoever is fenced meanwhile: a page
// that a server uses for writing nobody else uses, who is granted a page is told of its newest
// version (or, if nothing is known of it, of a floor that is not below it), no slot is put into
// that anybody may read, and storage is never thought to have what it has not (FU13, FU14, FU16,
// FU17, FP1-FP3). Servers are a few lines each here, that keep to the rules; what they think they
// have is compared. STRATA_SEED=n replays one.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <random>

#include "base/rng.h"
#include "fusion/pages/pages.h"

namespace strata::fusion {
namespace {

using proto::kNoPageSlot;
using proto::PageAsk;
using proto::PageCaller;
using proto::PageGiveUp;
using proto::PageGrant;
using proto::PageMode;
using proto::PageReport;

constexpr uint8_t kServers = 3;
constexpr uint32_t kPages = 4;
constexpr Epoch kEpoch{1};

class Model {
 public:
  Model(uint64_t seed, bool storage_replays) : rng_(seed), replays_(storage_replays) {
    PagesOptions options;
    options.slots = 64;
    options.shards = 2;
    options.entries_max = 3;
    options.storage_replays = storage_replays;
    options.ask_again_us = 20;
    pages_.emplace(options, kEpoch);
    for (uint8_t s = 1; s <= kServers; ++s) start(s);
  }

  std::string run() {
    for (uint32_t step = 0; step < 600 && failure_.empty(); ++step) {
      ++now_;
      one_step(true);
      check();
    }
    // Everything that waits is served in the end.
    for (uint32_t step = 0; step < 3000 && failure_.empty(); ++step) {
      ++now_;
      one_step(false);
      check();
    }
    for (uint8_t s = 1; s <= kServers && failure_.empty(); ++s)
      for (const auto& [page, hold] : servers_[s].holds)
        if (hold.state == State::kAsked) fail("somebody still waits");
    return failure_;
  }

 private:
  enum class State : uint8_t { kNone, kAsked, kHeld, kGivingUp };
  struct Hold {
    State state = State::kNone;
    PageMode mode = PageMode::kShared;
    uint64_t ask = 0, number = 0, refused = 0;
    bool wanted_back = false;
    uint64_t llsn = 0;
    PageReport report;  // kGivingUp: is said until it is answered
  };
  struct Server {
    uint64_t life = 0;
    bool fenced = false;
    uint64_t last_ask = 0;
    uint64_t end = 100;  // of its log
    std::map<PageId, Hold> holds;
    std::vector<uint32_t> slots;
  };
  struct Truth {
    uint64_t llsn = 0;
    uint64_t stored = 0;
    std::map<uint8_t, uint64_t> end;                      // by stream, of what was reported
    std::map<uint64_t, std::pair<uint8_t, uint64_t>> of;  // llsn -> stream, first Lsn
  };

  void fail(const std::string& what) {
    if (failure_.empty()) failure_ = what;
  }
  PageCaller caller(uint8_t s) const { return {NodeId{s}, servers_[s].life, kEpoch}; }
  void start(uint8_t s) {
    Server fresh;
    fresh.life = ++last_life_;
    fresh.end = servers_[s].end;
    servers_[s] = fresh;
    if (!pages_->joined(NodeId{s}, fresh.life).ok()) fail("cannot join");
  }
  // A message that comes later, or twice.
  void send(std::function<void()> action) {
    if (rng_.one_in(6)) mail_.push_back(action);
    mail_.push_back(std::move(action));
  }
  void collect() {
    for (Pages::Outgoing& out : pages_->take_outgoing()) {
      const uint8_t s = out.server.value;
      if (std::holds_alternative<PageGrant>(out.message))
        check_grant(s, std::get<PageGrant>(out.message));
      if (rng_.one_in(20)) continue;  // lost
      send([this, s, out] {
        if (servers_[s].life != out.life) return;
        if (const auto* grant = std::get_if<PageGrant>(&out.message))
          on_grant(s, *grant);
        else
          on_give_up(s, std::get<PageGiveUp>(out.message));
      });
    }
  }
  // The newest version that anybody may have seen.
  void check_grant(uint8_t s, const PageGrant& grant) {
    const Truth& truth = truths_[grant.page];
    const Hold& hold = servers_[s].holds[grant.page];
    const bool is_there = hold.state == State::kHeld || hold.state == State::kGivingUp;
    if (is_there && hold.number == grant.number) return;  // again; it has changed it since
    if (grant.known) {
      if (grant.llsn.value != truth.llsn) fail("a grant tells of an old version");
      if (!replays_ && grant.slot == kNoPageSlot) fail("a version is nowhere");
      return;
    }
    if (!replays_ && truth.stored != truth.llsn) fail("storage lacks what nobody knows of");
    // Of what is in the logs only nobody knows the llsn (FP7).
    if (!replays_ && grant.floor.llsn.value < truth.llsn) fail("the floor is below a page");
    for (const auto& [stream, end] : truth.end) {
      bool named = false;
      for (const auto& at : grant.floor.scanned_to)
        named |= at.stream.value == stream && at.lsn.value >= end;
      if (!named) fail("the floor does not name a place in a log");
    }
  }

  // --- a server ---
  void ask(uint8_t s, PageId page, PageMode mode) {
    Hold& hold = servers_[s].holds[page];
    if (hold.state != State::kNone || servers_[s].fenced) return;
    hold = Hold{State::kAsked, mode, ++servers_[s].last_ask, 0, 0, false, 0, {}};
    say_ask(s, page);
  }
  void say_ask(uint8_t s, PageId page) {
    const Hold& hold = servers_[s].holds[page];
    const PageAsk said{page, hold.mode, hold.ask, false};
    const PageCaller by = caller(s);
    send([this, said, by] {
      const PageAsk asks[] = {said};
      pages_->ask(by, asks, now_).IgnoreError();  // a fenced one's is refused
    });
  }
  void say(uint8_t s, const PageReport& report, std::function<void()> answered) {
    const PageCaller by = caller(s);
    send([this, s, report, by, answered] {
      const PageReport reports[] = {report};
      const Status status = pages_->report(by, reports, now_);
      if (is_invalid_argument(status)) fail(std::string(status.message()));
      if (!status.ok() || rng_.one_in(10)) return;  // no answer
      send([this, s, by, answered] {
        if (servers_[s].life == by.life) answered();
      });
    });
  }
  void on_grant(uint8_t s, const PageGrant& grant) {
    Hold& hold = servers_[s].holds[grant.page];
    const bool known = hold.state == State::kHeld || hold.state == State::kGivingUp;
    if (known && hold.number == grant.number) return;
    if (hold.state != State::kAsked || hold.ask != grant.ask || grant.number <= hold.refused)
      return say(s, {.page = grant.page, .number = grant.number, .gives_up = true}, [] {});
    hold.state = State::kHeld;
    hold.number = grant.number;
    hold.mode = grant.mode;
    hold.llsn = truths_[grant.page].llsn;
  }
  void on_give_up(uint8_t s, const PageGiveUp& give_up) {
    Hold& hold = servers_[s].holds[give_up.page];
    if (hold.state == State::kHeld || hold.state == State::kGivingUp) {
      if (hold.number == give_up.number) hold.wanted_back = true;
      return;
    }
    hold.refused = std::max(hold.refused, give_up.number);
    say(s, {.page = give_up.page, .number = give_up.number, .gives_up = true}, [] {});
  }
  // One change, put and reported.
  std::optional<PageReport> change(uint8_t s, PageId page, bool gives_up) {
    Server& server = servers_[s];
    Hold& hold = server.holds[page];
    if (!replays_ && server.slots.empty()) return std::nullopt;
    if (hold.llsn != truths_[page].llsn) fail("a change of an old version");
    PageReport report{.page = page, .number = hold.number, .gives_up = gives_up, .changed = true};
    report.llsn = Llsn{++last_llsn_};
    if (!server.slots.empty()) {
      report.slot = server.slots.back();
      server.slots.pop_back();
    }
    report.stream = StreamId{s};
    report.first = Lsn{server.end};
    server.end += 10;
    report.end = Lsn{server.end};
    hold.llsn = report.llsn.value;
    Truth& truth = truths_[page];
    truth.llsn = report.llsn.value;
    truth.of[truth.llsn] = {s, report.first.value};
    truth.end[s] = report.end.value;
    return report;
  }
  void give_up(uint8_t s, PageId page) {
    Hold& hold = servers_[s].holds[page];
    std::optional<PageReport> changed;
    if (hold.mode == PageMode::kExclusive && rng_.one_in(2)) changed = change(s, page, true);
    hold.report =
        changed.value_or(PageReport{.page = page, .number = hold.number, .gives_up = true});
    hold.state = State::kGivingUp;
    say_given_up(s, page);
  }
  void say_given_up(uint8_t s, PageId page) {
    const PageReport report = servers_[s].holds[page].report;
    say(s, report, [this, s, page, report] {
      Hold& hold = servers_[s].holds[page];
      if (hold.state == State::kGivingUp && hold.number == report.number)
        hold = Hold{State::kNone, {}, 0, 0, hold.refused, false, 0, {}};
    });
  }

  // --- fences ---
  void fence(uint8_t s) {
    Server& server = servers_[s];
    if (server.fenced) return;
    server.fenced = true;
    pages_->fence(NodeId{s});
    mail_.push_back([this, s] { release(s); });
  }
  // The next life redoes what the log has, reports it, and goes on; or says where the log ends.
  void release(uint8_t s) {
    const uint64_t life = servers_[s].life;
    pages_->release_fenced(NodeId{s});
    start(s);
    if (!pages_->adopt(caller(s), NodeId{s}).ok()) fail("cannot adopt");
    mail_.push_back([this, s, life] { pages_->mapping_gone(NodeId{s}, life); });
    collect();
    for (const Pages::DeadPage& dead : pages_->dead_pages(NodeId{s})) {
      if (replays_) break;  // FP7
      const PageAsk asks[] = {{dead.page, PageMode::kExclusive, ++servers_[s].last_ask, true}};
      pages_->ask(caller(s), asks, now_).IgnoreError();  // it is a member
      std::vector<Pages::Outgoing> kept;
      for (Pages::Outgoing& out : pages_->take_outgoing()) {
        const auto* grant = std::get_if<PageGrant>(&out.message);
        if (grant == nullptr || grant->page != dead.page || out.server != NodeId{s}) continue;
        redo(s, *grant);
      }
    }
    if (!pages_->adoption_ended(caller(s), NodeId{s}, {StreamId{s}, Lsn{log_end(s)}}).ok())
      fail("cannot end it");
  }
  uint64_t log_end(uint8_t s) const {
    uint64_t end = 0;
    for (const auto& [page, truth] : truths_)
      for (const auto& [stream, place] : truth.end)
        if (stream == s) end = std::max(end, place);
    return end;
  }
  void redo(uint8_t s, const PageGrant& grant) {
    Truth& truth = truths_[grant.page];
    PageReport report{.page = grant.page, .number = grant.number, .gives_up = true};
    if (grant.known ? grant.llsn.value < truth.llsn : truth.llsn != truth.stored) {
      // Its log has changes that no slot has.
      const auto slots = pages_->take_slots(caller(s), ++requests_, 1);
      report.changed = true;
      report.llsn = Llsn{truth.llsn};
      if (!slots->empty()) report.slot = slots->front();
      report.stream = StreamId{s};
      report.first =
          Lsn{truth.of.upper_bound(grant.known ? grant.llsn.value : truth.stored)->second.second};
      report.end = Lsn{truth.end[s]};
      if (slots->empty() && !replays_) return fail("no slot is left");
    }
    const PageReport reports[] = {report};
    if (!pages_->report(caller(s), reports, now_).ok()) fail("redone in vain");
  }
  void one_step(bool faulty) {
    const uint8_t s = static_cast<uint8_t>(1 + rng_.below(kServers));
    const PageId page{256, static_cast<uint32_t>(rng_.below(kPages))};
    Server& server = servers_[s];
    switch (rng_.below(10)) {
      case 0:
        if (faulty) ask(s, page, rng_.one_in(2) ? PageMode::kShared : PageMode::kExclusive);
        break;
      case 1: {  // what was asked for is used, and given up
        Hold& hold = server.holds[page];
        if (hold.state == State::kHeld && (hold.wanted_back || rng_.one_in(8))) give_up(s, page);
        break;
      }
      case 2: {  // said again
        Hold& hold = server.holds[page];
        if (server.fenced) break;
        if (hold.state == State::kAsked) say_ask(s, page);
        if (hold.state == State::kGivingUp) say_given_up(s, page);
        break;
      }
      case 3: {
        Hold& hold = server.holds[page];
        if (hold.state == State::kHeld && hold.mode == PageMode::kExclusive && !server.fenced) {
          const auto report = change(s, page, false);
          // Repeated until it is answered, or its hold ends by a newer one: here, said at once.
          if (report.has_value()) {
            const PageReport reports[] = {*report};
            pages_->report(caller(s), reports, now_).IgnoreError();  // it is a member
            say(s, *report, [] {});
          }
        }
        break;
      }
      case 4:
        if (!server.fenced && server.slots.empty() && !(replays_ && rng_.one_in(2))) {
          const auto slots = pages_->take_slots(caller(s), ++requests_, 1);
          if (slots.ok()) server.slots = *slots;
        }
        break;
      case 5:
        if (!replays_) store();
        break;
      case 6:
        if (faulty && rng_.one_in(12)) fence(s);
        if (rng_.one_in(8)) pages_->trim(rng_.below(4));
        pages_->tick(now_);
        break;
      default:
        for (int i = faulty ? 1 : 3; i > 0 && !mail_.empty(); --i) {
          const size_t at = rng_.below(mail_.size());
          const std::function<void()> action = std::move(mail_[at]);
          mail_.erase(mail_.begin() + static_cast<ptrdiff_t>(at));
          action();
        }
        break;
    }
    collect();
  }
  void store() {
    if (!writes_.empty() && rng_.one_in(2)) {
      const Pages::Write write = writes_.front();
      writes_.erase(writes_.begin());
      const bool ok = !rng_.one_in(5);
      if (ok) truths_[write.page].stored = std::max(truths_[write.page].stored, write.llsn.value);
      pages_->write_ended(write, ok);
      return;
    }
    const uint64_t before = rng_.one_in(2) ? UINT64_MAX : now_ - std::min<uint64_t>(now_, 20);
    for (const Pages::Write& write : pages_->begin_writes(1, before)) writes_.push_back(write);
  }

  void check() {
    if (!failure_.empty()) return;
    if (now_ % 4 == 0)
      if (const std::string wrong = pages_->check(); !wrong.empty()) return fail(wrong);
    for (uint32_t number = 0; number < kPages; ++number) {
      const PageId page{256, number};
      uint32_t readers = 0, writers = 0;
      for (uint8_t s = 1; s <= kServers; ++s) {
        const auto it = servers_[s].holds.find(page);
        if (it == servers_[s].holds.end() || it->second.state != State::kHeld) continue;
        (it->second.mode == PageMode::kExclusive ? writers : readers)++;
      }
      if (writers > 1 || (writers == 1 && readers != 0)) fail("a page is used by two");
    }
    if (replays_ || now_ % 8 != 0) return;
    for (uint8_t s = 1; s <= kServers; ++s) {
      // What is in no slot is in its server's frames, which hold back the checkpoint themselves.
      uint64_t least = UINT64_MAX;
      for (const auto& [page, truth] : truths_)
        for (const auto& [llsn, change] : truth.of)
          if (llsn > truth.stored && llsn <= reported(page) && change.first == s)
            least = std::min(least, change.second);
      if (pages_->oldest(StreamId{s}).value > least) fail("a checkpoint would pass a change");
    }
  }
  // The newest version that the memory node has been told of.
  uint64_t reported(PageId page) {
    uint64_t newest = 0;
    for (const auto& [llsn, change] : truths_[page].of)
      if (!in_flight(page, llsn)) newest = std::max(newest, llsn);
    return newest;
  }
  bool in_flight(PageId page, uint64_t llsn) {
    for (uint8_t s = 1; s <= kServers; ++s) {
      const auto it = servers_[s].holds.find(page);
      if (it == servers_[s].holds.end()) continue;
      const bool giving_up = it->second.state == State::kGivingUp;
      if (giving_up && it->second.report.changed && it->second.report.llsn.value == llsn)
        return true;
    }
    return false;
  }

  Rng rng_;
  const bool replays_;
  std::optional<Pages> pages_;
  std::array<Server, kServers + 1> servers_;
  std::map<PageId, Truth> truths_;
  std::vector<std::function<void()>> mail_;
  std::vector<Pages::Write> writes_;
  uint64_t now_ = 0, last_life_ = 0, last_llsn_ = 0, requests_ = 0;
  std::string failure_;
};

TEST(PagesModel, KeepsItsRulesInAnyOrderOfMessages) {
  const char* fixed = std::getenv("STRATA_SEED");
  std::random_device entropy;
  const uint64_t first = fixed != nullptr ? std::strtoull(fixed, nullptr, 10) : entropy();
  const uint64_t count = fixed != nullptr ? 1 : 100;
  for (uint64_t seed = first; seed < first + count && !::testing::Test::HasFailure(); ++seed)
    for (const bool storage_replays : {false, true})
      EXPECT_EQ(Model(seed, storage_replays).run(), "")
          << "STRATA_SEED=" << seed << (storage_replays ? ", storage replays" : "");
}

}  // namespace
}  // namespace strata::fusion
