// Does what the tasks of WriteSessions say.
#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/clock.h"
#include "clients/storage/written_nodes.h"
#include "proto/calls/calls.h"
#include "proto/methods.h"

namespace strata::clients {

namespace {

constexpr uint64_t kLookUs = 100'000;  // at what the keeper has to do
constexpr uint64_t kBeginTimeoutUs = 1'000'000;
constexpr uint64_t kContinueTimeoutUs = 300'000;  // others wait for it: time for a reconnection

Status lost_place() { return error_peer_down("it has lost its place in the group"); }

}  // namespace

// Calls under way to several nodes; the last answer wakes whoever waits.
class WrittenNodes::Round {
 public:
  explicit Round(size_t calls) : answers_(calls), missing_(calls) {}
  void answer(size_t i, const transport::Reply& reply) {
    const MutexLock lock(mutex_);
    answers_[i].status = reply.status;
    answers_[i].answered = reply.answered;
    answers_[i].payload = reply.payload;
    if (--missing_ == 0) all_.notify_all();
  }
  Answers wait() {
    MutexLock lock(mutex_);
    all_.wait(lock, [this]() STRATA_REQUIRES(mutex_) { return missing_ == 0; });
    return std::move(answers_);
  }

 private:
  Mutex mutex_{LatchRank::kLeaf};
  CondVar all_;
  Answers answers_ STRATA_GUARDED_BY(mutex_);
  size_t missing_ STRATA_GUARDED_BY(mutex_);
};

// --- what callers want ---

Status WrittenNodes::to_all(uint16_t method, Encode encode) {
  return run(WriteSessions::call(method), encode);
}

Status WrittenNodes::to_all_through(WriteThrough write) {
  STRATA_ASSERT(options_.write_again != nullptr);  // WN4
  return run(
      WriteSessions::call_elsewhere(), [](const proto::Writer&) { return std::string(); }, write);
}

Status WrittenNodes::sync() { return run(WriteSessions::sync()); }

Status WrittenNodes::check_sessions() { return run(WriteSessions::check()); }

// --- one step after the other ---

Status WrittenNodes::run(Task task) {
  return run(std::move(task), [](const proto::Writer&) { return std::string(); });
}

Status WrittenNodes::run(Task task, Encode encode) {
  return run(std::move(task), encode, [](const auto&) {
    STRATA_ASSERT(false);  // this task makes its calls itself
    return Delegated{};
  });
}

Status WrittenNodes::run(Task task, Encode encode, WriteThrough write) {
  proto::CopyPagesRequest copy;
  for (;;) {
    const Now now = wait_for_step(&task);
    if (now.step.kind == Step::Kind::kDone) {
      say();
      return now.step.status;
    }
    if (now.step.kind == Step::Kind::kPublish) {
      const Status published = in_sync_->publish(now.step.list);
      const MutexLock lock(mutex_);
      sessions_.published(&task, published, monotonic_us());
    } else {
      std::string request;
      std::vector<PageId> pages;
      const Answers answers = now.step.elsewhere ? ask_through(now, write, &pages)
                                                 : ask(now, task.method(), encode, &copy, &request);
      const MutexLock lock(mutex_);
      if (now.step.elsewhere)
        sessions_.answered_elsewhere(&task, answers, pages, monotonic_us());
      else
        sessions_.answered(&task, answers, request, monotonic_us());
    }
    changed_.notify_all();
  }
}

// Blocks until the task may go on.
WrittenNodes::Now WrittenNodes::wait_for_step(Task* task) {
  MutexLock lock(mutex_);
  for (;;) {
    Now now;
    now.step = sessions_.step(task, monotonic_us());
    if (now.step.kind != Step::Kind::kWait) {
      if (now.step.kind == Step::Kind::kDone) changed_.notify_all();
      for (const Target& one : now.step.targets) now.targets.push_back(find(one.node));
      for (const Target& one : now.step.peers)
        if (const NodeRef peer = find(one.node)) now.peers.push_back({peer, one.session});
      return now;
    }
    if (now.step.until_us == UINT64_MAX) {
      changed_.wait(lock);
      continue;
    }
    const uint64_t now_us = monotonic_us();
    if (now.step.until_us > now_us) changed_.wait_for_us(lock, now.step.until_us - now_us);
  }
}

// `request`: as one of the nodes was sent it.
WrittenNodes::Answers WrittenNodes::ask(const Now& now, uint16_t method, Encode encode,
                                        proto::CopyPagesRequest* copy, std::string* request) {
  switch (now.step.what) {
    case Step::What::kBegin:
      return begin_sessions(now);
    case Step::What::kTellAgain:
      if (now.step.call->method == UnsyncedPages::kElsewhere) return write_again(now);
      return ask_all(now, now.step.call->method, options_.write_timeout_us,
                     [&](const proto::Writer& writer) { return now.step.call->encode(writer); });
    case Step::What::kSync:
      return {sync_one(now)};
    case Step::What::kCopy:
      return {copy_to(now, copy)};
    case Step::What::kCall:
      break;
  }
  if (method == proto::kSyncPages)
    return ask_all(now, method, options_.sync_timeout_us, [](const proto::Writer& writer) {
      return proto::encode(proto::SyncPagesRequest{writer});
    });
  return ask_all(now, method, options_.write_timeout_us, [&](const proto::Writer& writer) {
    *request = encode(writer);
    return *request;
  });
}

// Targets that have lost their place meanwhile are not told to it, nor does their answer count.
WrittenNodes::Answers WrittenNodes::ask_through(const Now& now, WriteThrough write,
                                                std::vector<PageId>* pages) {
  std::vector<DelegateTarget> targets;
  for (size_t i = 0; i < now.targets.size(); ++i)
    if (now.targets[i] != nullptr)
      targets.push_back({now.targets[i]->address.now(), now.step.targets[i].session});
  Delegated done = write(targets);
  *pages = std::move(done.pages);
  const bool known = done.nothing_to_do || done.answers.size() == targets.size();
  Answers answers;
  size_t next = 0;
  for (const NodeRef& node : now.targets) {
    Answer& answer = answers.emplace_back();
    if (node == nullptr) {
      answer.status = lost_place();
    } else if (!known) {
      answer.status = error_peer_down("nobody knows whether it was written to");
    } else if (!done.nothing_to_do) {
      DelegateAnswer& of_it = done.answers[next++];
      answer.answered = of_it.answered;
      answer.status = of_it.answered || !of_it.status.ok()
                          ? std::move(of_it.status)
                          : error_peer_down("it did not answer who writes for us");
    }
  }
  return answers;
}

// One after the other: there are few, and it happens when all of them were restarted.
WrittenNodes::Answers WrittenNodes::write_again(const Now& now) {
  Answers answers;
  for (size_t i = 0; i < now.targets.size(); ++i) {
    Answer& answer = answers.emplace_back();
    if (now.targets[i] == nullptr) {
      answer.status = lost_place();
      continue;
    }
    DelegateAnswer again =
        options_.write_again({now.targets[i]->address.now(), now.step.targets[i].session});
    answer.answered = again.answered;
    answer.status = std::move(again.status);
  }
  return answers;
}

WrittenNodes::Answers WrittenNodes::ask_all(const Now& now, uint16_t method, uint64_t timeout_us,
                                            Encode encode) {
  const auto call = proto::call_of(method, world_.executor->now_us() + timeout_us, options_.epoch);
  return ask_all(now, call, [&](const Target& one) { return encode(writer(one.session)); });
}

WrittenNodes::Answers WrittenNodes::ask_all(const Now& now, const transport::CallOptions& call,
                                            absl::FunctionRef<std::string(const Target&)> encode) {
  auto round = std::make_shared<Round>(now.targets.size());
  for (size_t i = 0; i < now.targets.size(); ++i) {
    const auto answer = [round, i](const transport::Reply& reply) { round->answer(i, reply); };
    if (now.targets[i] != nullptr)
      now.targets[i]->writes->call(call, encode(now.step.targets[i]), answer);
    else
      answer(transport::Reply{lost_place()});
  }
  return round->wait();
}

// What is written next goes over the same connection.
WrittenNodes::Answers WrittenNodes::begin_sessions(const Now& now) {
  const bool continues = std::any_of(now.step.targets.begin(), now.step.targets.end(),
                                     [](const Target& one) { return one.before != 0; });
  const uint64_t timeout_us = continues ? kContinueTimeoutUs : kBeginTimeoutUs;
  auto call =
      proto::call_of(proto::kBeginWrites, world_.executor->now_us() + timeout_us, options_.epoch);
  call.wait_for_connection = true;
  Answers answers = ask_all(now, call, [&](const Target& one) {
    return proto::encode(proto::BeginWritesRequest{writer(one.session), one.before});
  });
  for (Answer& answer : answers) {
    if (!answer.status.ok()) continue;
    auto reply = proto::decode_begin_writes_reply(answer.payload);
    answer.status = reply.status();
    if (reply.ok()) answer.begun = *reply;
  }
  return answers;
}

WrittenNodes::Answer WrittenNodes::sync_one(const Now& now) {
  if (now.targets.front() == nullptr) return {lost_place()};
  transport::BlockingReply reply;
  const proto::SyncPagesRequest request{writer(now.step.targets.front().session)};
  return {call(now.targets.front(), proto::kSyncPages, proto::encode(request),
               options_.sync_timeout_us, &reply)};
}

// Always the same request: asked again it tells how far the copy is.
WrittenNodes::Answer WrittenNodes::copy_to(const Now& now, proto::CopyPagesRequest* copy) {
  if (now.targets.front() == nullptr) return {lost_place()};
  for (const Reader& peer : now.peers) {
    if (!copy->peer.empty()) break;
    *copy = {writer(now.step.targets.front().session), address(peer), peer.session};
  }
  if (copy->peer.empty()) return {error_peer_down("no storage node is in sync to copy from")};
  transport::BlockingReply reply;
  Answer answer;
  answer.status = call(now.targets.front(), proto::kCopyPages, proto::encode(*copy),
                       options_.write_timeout_us, &reply);
  if (!answer.status.ok()) return answer;
  auto copied = proto::decode_copy_pages_reply(reply.payload);
  answer.status = copied.status();
  if (copied.ok()) answer.copied = *std::move(copied);
  return answer;
}

// --- the keeper ---

// Blocks until a node may come back, is suspected or gone. False: it is over.
bool WrittenNodes::wait_for_work(Work* work) {
  MutexLock lock(mutex_);
  while (!sessions_.stopped()) {
    const uint64_t now_us = monotonic_us();
    work->gone.swap(gone_);
    work->due = sessions_.due(now_us);
    if (work->due.suspected || !work->due.out.empty() || !work->gone.empty()) return true;
    if (work->due.next_us == UINT64_MAX)
      changed_.wait(lock);
    else
      changed_.wait_for_us(lock, work->due.next_us - now_us);
  }
  return false;
}

void WrittenNodes::keep() {
  for (;;) {
    Work work;
    if (!wait_for_work(&work)) return;
    work.gone.clear();
    // How it ended the machine knows, and says: it is tried again, or nothing is any more.
    for (const WriteSessions::NodeNumber node : work.due.out)
      (void)run(WriteSessions::come_back(node));
    if (!work.due.suspected || check_sessions().ok()) continue;
    MutexLock lock(mutex_);  // nobody answers: not at once again
    changed_.wait_for_us(lock, kLookUs,
                         [this]() STRATA_REQUIRES(mutex_) { return sessions_.stopped(); });
  }
}

}  // namespace strata::clients
