// Which names of tables a server has, and for whom of its threads: the server's half of
// fusion/names, without threads, calls or a clock of its own. Thread-safe; nothing blocks. Whoever
// owns it (NameLocks, a simulation) sends what take_asks() and take_reports() return, and lets what
// take_ready() returns be forgotten.
//
//   FC33  The threads of a server share one lock to use a name, which stays until others want it.
//         While it is being given up nobody gets it; whoever asks meanwhile waits for what comes of
//         that. An exclusive one is one thread's; the others, and other servers, come after it. A
//         shared one is that of all threads that want it, until the last has let it go; no name is
//         wanted exclusively and shared. Beside it a name may be given up for use (so that others
//         can have it shared, too), and nobody gets it for use by it.
//   FC34  A grant counts if it answers the ask that is under way and is newer than what was said
//         not to be held; any other is answered "not held", but for one that is there already
//         (FU13).
//   FC35  A name that is to be given up is given up once its owner has said that nothing of it is
//         remembered here (MW15). If it is still in use it stays, and those who waited have it;
//         that is tried again.
//   FC36  No thread gets a name while it is being given up, not even by a grant that has come
//         since: what is remembered of it has to be gone before, or has to stay.
//   FC37  A thread that does not wait any more takes its ask back. An exclusive grant that comes
//         all the same ends at once.
//   FC49  A memory node in the place of one that is gone is told what there is (renew()): what the
//         server has, with its numbers. What it had said to have given up, and nobody has answered,
//         it has not. Who had asked asks again, by another number.
//   FC53  The memory node asks again and again for a name while somebody waits for it. Once it has
//         not for wanted_us nobody wants the name any more (who did has given up waiting), and it
//         stays.
//   FC38  Nobody gets a name once end() was called.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "base/latch.h"
#include "base/status.h"
#include "proto/name_locks.h"
#include "proto/resume_messages.h"

namespace strata::clients {

struct NameHoldsOptions {
  uint64_t ask_again_us = 1'000'000;  // when no grant has come
  uint64_t try_again_us = 50'000;     // after a name that is in use could not be given up
  uint64_t wanted_us = 3'000'000;     // FC53; many times as long as NamesOptions::ask_again_us
};

struct NameHoldsCounters {
  uint64_t held = 0;  // at once: nobody was asked
  uint64_t asks = 0, grants = 0, not_held = 0, asked_back = 0, given_up = 0, in_use = 0;
};

class NameHolds {
 public:
  class Request {
   public:
    Request(Bytes name, proto::NameMode mode) : name(name), mode(mode) {}
    virtual ~Request() = default;
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;
    // The status is there; the request may be gone when this returns. Called without any mutex.
    virtual void answered() noexcept = 0;

    const std::string name;
    const proto::NameMode mode;
    Status status;
  };

  // `work`: something is to be taken; called without any mutex of this.
  NameHolds(const NameHoldsOptions& options, std::function<void()> work);

  // --- threads of the server ---
  // True: it is answered already (status).
  bool acquire(Request* request, uint64_t now_us);
  // True: it was not answered, and will not be.
  bool cancel(Request* request, uint64_t now_us);
  // The exclusive lock becomes one to use the name. Of a shared one, with its last thread, nothing
  // is left.
  void unlock(Bytes name, uint64_t now_us);

  // --- from the memory node ---
  void granted(const proto::NameGrant& grant, uint64_t now_us);
  void asked_back(const proto::NameGiveUp& give_up);

  // --- to the memory node ---
  std::vector<proto::NameAsk> take_asks();
  std::vector<proto::NameReport> take_reports();
  // They could not be sent.
  void reports_failed(std::vector<proto::NameReport> reports);
  // A name to be given up: gave_up() says what has come of it.
  std::optional<std::string> take_ready();
  void gave_up(const std::string& name, bool is_forgotten, uint64_t now_us);
  // Asks that nobody has answered for long, names that were in use.
  void repeat(uint64_t now_us);
  // FC49. Returns what the server has.
  std::vector<proto::HeldName> renew(uint64_t now_us);
  // The largest of a grant that was ever heard of.
  [[nodiscard]] uint64_t last_number() const;
  [[nodiscard]] Status ended() const;  // OK, or what end() said
  // FC38. Who waits gets the status.
  void end(const Status& status);

  [[nodiscard]] NameHoldsCounters counters() const;
  [[nodiscard]] uint64_t names() const;
  [[nodiscard]] bool has(Bytes name, proto::NameMode mode) const;
  // Whether that is the number of something that the server has.
  [[nodiscard]] bool has_grant(Bytes name, uint64_t number) const;
  // For people.
  [[nodiscard]] std::string describe(Bytes name) const;

 private:
  struct Hold {
    uint64_t use = 0, exclusive = 0;                            // numbers of grants; 0: none
    bool shared = false;                                        // `exclusive` is that
    uint32_t takers = 0;                                        // threads that have `exclusive`
    proto::NameMode strong_mode = proto::NameMode::kExclusive;  // that exclusive_ask is for
    uint64_t use_ask = 0, exclusive_ask = 0;                    // under way; 0: none
    uint64_t asked_us = 0;
    uint64_t refused = 0;       // what was said not to be held; numbers above count
    bool wanted_back = false;   // what there is to use
    bool wanted_again = false;  // asked since the last look
    uint64_t wanted_us = 0;     // the last look before which it was asked
    bool listed = false;        // in ready_
    bool giving_up = false;     // its owner is asked to forget it
    uint64_t try_at_us = 0;
    std::list<Request*> waiting = {};
  };
  using Holds = std::unordered_map<std::string, Hold>;
  using Answered = std::vector<Request*>;

  [[nodiscard]] static const Request* first_waiting(const Hold& hold, bool for_use) noexcept;
  static bool may_use(const Hold& hold) noexcept {
    return !hold.giving_up && (hold.use != 0 || (hold.exclusive != 0 && !hold.shared));
  }
  // Answers who can be, asks for what is missing, lists what is to be given up. The hold may be
  // gone when it returns. True: there is work.
  bool settle(Holds::iterator it, uint64_t now_us, Answered* answered) STRATA_REQUIRES(mutex_);
  void answer(Hold* hold, const std::string& name, Answered* answered) STRATA_REQUIRES(mutex_);
  void ask(Hold* hold, const std::string& name, proto::NameMode mode, uint64_t* number,
           uint64_t now_us) STRATA_REQUIRES(mutex_);
  void take_back(const std::string& name, uint64_t* number) STRATA_REQUIRES(mutex_);
  void release_exclusive(Hold* hold, const std::string& name) STRATA_REQUIRES(mutex_);
  void say_not_held(const std::string& name, uint64_t number, Hold* hold, uint64_t ask)
      STRATA_REQUIRES(mutex_);
  void look_whether_wanted(Hold* hold, uint64_t now_us) const noexcept;
  void finish(bool has_work, const Answered& answered);

  const NameHoldsOptions options_;
  const std::function<void()> work_;
  mutable Mutex mutex_{LatchRank::kLeaf};
  Holds holds_ STRATA_GUARDED_BY(mutex_);
  std::set<std::string> unsettled_ STRATA_GUARDED_BY(mutex_);  // asked for, or wanted back
  std::vector<proto::NameAsk> asks_ STRATA_GUARDED_BY(mutex_);
  std::vector<proto::NameReport> reports_ STRATA_GUARDED_BY(mutex_);
  std::deque<std::string> ready_ STRATA_GUARDED_BY(mutex_);
  uint64_t last_ask_ STRATA_GUARDED_BY(mutex_) = 0;
  uint64_t last_number_ STRATA_GUARDED_BY(mutex_) = 0;
  std::optional<Status> end_ STRATA_GUARDED_BY(mutex_);
  NameHoldsCounters counters_ STRATA_GUARDED_BY(mutex_);
};

}  // namespace strata::clients
