// Storage nodes that keep written pages, as WriteSessions meets them: in memory, with what a
// restart takes and what it leaves, and the messages to them. For one thread, everything by a seed.
//   A node follows WS1-WS3 of storenode/written/written_store.h, and its copy does not sync.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/rng.h"
#include "clients/storage/write_sessions.h"
#include "proto/methods.h"

namespace strata::clients::testing {

using Version = uint64_t;  // of a page; they only grow
using Pages = std::map<uint32_t, Version>;
using What = WriteSessions::Step::What;

constexpr StreamId kFirstSimStream{1};
constexpr SpaceId kSimSpace{300};
constexpr uint32_t kSimPages = 4;

inline Version version_in(const Pages& pages, uint32_t page) {
  const auto found = pages.find(page);
  return found == pages.end() ? 0 : found->second;
}

// A kWritePages request whose pages say their versions.
inline std::string encode_write(const proto::Writer& writer, const Pages& pages) {
  std::vector<PageId> ids;
  std::string bytes(pages.size() * size_t{kPageBytes}, '\0');
  for (const auto& [page, version] : pages) {
    std::memcpy(bytes.data() + ids.size() * size_t{kPageBytes}, &version, sizeof version);
    ids.push_back({kSimSpace.value, page});
  }
  return proto::encode(proto::WritePagesRequest{writer, ids, bytes});
}

inline Pages pages_of(const UnsyncedPages::Call& call) {
  Pages pages;
  for (size_t i = 0; i < call.ids.size(); ++i)
    std::memcpy(&pages[call.ids[i].number], call.pages.data() + i * size_t{kPageBytes},
                sizeof(Version));
  return pages;
}

struct Message {
  WriteSessions::NodeNumber to = 0;
  What what = What::kCall;
  uint16_t method = 0;  // kCall, kTellAgain
  Epoch epoch;
  uint64_t session = 0;
  uint64_t before = 0;
  Pages pages;
  std::vector<WriteSessions::Target> peers;
  uint64_t task = 0, round = 0;  // who waits for it
  size_t slot = 0;
  uint64_t life =
      0;  // of the node; not 0: it has arrived once, and goes with that life's connection
};

struct SimNode {
  WriteSessions::NodeNumber number = 0;
  std::string name;
  uint64_t store = 0;
  bool up = true;
  uint64_t life = 1;
  bool noticed = true;  // compute knows that an earlier connection is gone
  bool full = false;
  Epoch marked;  // durable
  Epoch epoch;
  uint64_t session = 0;  // 0: it knows none
  uint64_t chain_first = 0;
  Pages memory, durable;
  struct Copy {
    Epoch epoch;
    uint64_t session = 0;
    WriteSessions::Target from;
    uint32_t next = 0;
    bool failed = false;
  } copy;

  // It knows everything it was told in that session.
  [[nodiscard]] bool knows(Epoch of, uint64_t in) const {
    return session != 0 && epoch == of && in >= chain_first && in <= session;
  }
  [[nodiscard]] bool has(const Pages& wanted, const Pages& in) const {
    return std::all_of(wanted.begin(), wanted.end(),
                       [&](const auto& page) { return version_in(in, page.first) >= page.second; });
  }
  // Of what was not synced each page is there or not.
  void restart(Rng* rng, bool loses) {
    for (auto& [page, version] : memory)
      if (loses && rng->one_in(2)) version = version_in(durable, page);
    durable = memory;
    session = 0;
    copy = {};
    ++life;
    noticed = false;
  }
  void lose_disk(uint64_t new_store) {
    memory.clear();
    durable.clear();
    session = 0;
    copy = {};
    ++life;
    noticed = false;
    store = new_store;
  }
  [[nodiscard]] Status check(const Message& message) const {
    if (message.epoch < marked) return error_fenced("that epoch was taken over");
    if (session == 0 || epoch != message.epoch || session != message.session)
      return error_peer_down("it is not that session");
    return ok_status();
  }
  WriteSessions::Answer begin(const Message& message) {
    WriteSessions::Answer answer;
    answer.answered = true;
    if (message.epoch < marked) {
      answer.status = error_fenced("that epoch was taken over");
    } else if (session != 0 && epoch == message.epoch && message.session <= session) {
      answer.status = error_peer_down("a later write session has begun");
    } else {
      answer.begun = {store, message.before != 0 && knows(message.epoch, message.before)};
      if (!answer.begun.continued) chain_first = message.session;
      marked = epoch = message.epoch;
      session = message.session;
    }
    return answer;
  }
  // One look at a copy: the first orders it.
  proto::CopyPagesReply order_copy(const Message& message) {
    if (copy.session != message.session || copy.epoch != message.epoch)
      copy = {message.epoch, message.session, message.peers.front(), 0, false};
    using State = proto::CopyPagesReply::State;
    if (copy.failed) return {State::kFailed, copy.next, 0, error_peer_down("the peer went away")};
    return {copy.next == kSimPages ? State::kDone : State::kRunning, copy.next, 0, {}};
  }
  // Takes one more page.
  void go_on_copying(const SimNode* peer) {
    if (copy.session == 0 || copy.session != session || copy.epoch != epoch) return;
    if (copy.next == kSimPages) return;
    copy.failed |=
        peer == nullptr || !peer->up || peer->session != copy.from.session || peer->epoch != epoch;
    if (copy.failed) return;
    const Version theirs = version_in(peer->memory, copy.next);
    if (theirs > version_in(memory, copy.next)) memory[copy.next] = theirs;
    ++copy.next;
  }
};

}  // namespace strata::clients::testing
