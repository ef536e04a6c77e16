#include "memnode/service/storage_writer.h"

#include <atomic>
#include <utility>

#include "base/assert.h"
#include "proto/calls/calls.h"
#include "proto/methods.h"
#include "proto/written_messages.h"

namespace strata::memnode {

// Answers come one by one, whoever brings the last one calls `done`.
struct StorageWriter::Call {
  std::vector<proto::PoolAnswer> answers;
  std::atomic<size_t> missing{0};
  Done done;

  void answer(size_t i, proto::PoolAnswer said) {
    answers[i] = std::move(said);
    const size_t before = missing.fetch_sub(1);
    STRATA_ASSERT(before != 0);  // each is asked once
    if (before == 1) done(std::move(answers));
  }
};

StorageWriter::StorageWriter(const transport::World& world, const transport::Secret& secret,
                             const StorageWriterOptions& options)
    : world_(world), secret_(secret), options_(options) {}

StorageWriter::~StorageWriter() { stop(); }

void StorageWriter::stop() {
  std::map<std::string, Peer> peers;
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
    peers.swap(peers_);
  }
}

// The one that was used longest ago, of those that nobody waits for.
std::shared_ptr<transport::Channel> StorageWriter::take_idle() {
  auto oldest = peers_.end();
  for (auto it = peers_.begin(); it != peers_.end(); ++it)
    if (it->second.under_way == 0 &&
        (oldest == peers_.end() || it->second.used < oldest->second.used))
      oldest = it;
  if (oldest == peers_.end()) return nullptr;
  auto channel = std::move(oldest->second.channel);
  peers_.erase(oldest);
  return channel;
}

std::shared_ptr<transport::Channel> StorageWriter::begin(const std::string& address) {
  std::shared_ptr<transport::Channel> dropped;  // goes without the mutex: that blocks
  const MutexLock lock(mutex_);
  if (stopped_) return nullptr;
  if (peers_.count(address) == 0 && peers_.size() >= options_.channels_max) dropped = take_idle();
  Peer& peer = peers_[address];
  if (peer.channel == nullptr)
    peer.channel =
        std::make_shared<transport::Channel>(world_, secret_, address, transport::ChannelOptions{});
  peer.used = ++uses_;
  peer.under_way++;
  return peer.channel;
}

void StorageWriter::end(const std::string& address) {
  const MutexLock lock(mutex_);
  const auto found = peers_.find(address);
  if (found != peers_.end()) found->second.under_way--;
}

void StorageWriter::write(const PageBatch& batch, const std::vector<proto::PoolTarget>& targets,
                          Done done) {
  auto call = std::make_shared<Call>();
  call->answers.resize(targets.size());
  call->missing = targets.size();
  call->done = std::move(done);
  if (targets.empty()) return call->done({});
  const auto options = proto::call_of(proto::kWritePages,
                                      world_.executor->now_us() + options_.timeout_us, batch.epoch);
  for (size_t i = 0; i < targets.size(); ++i) {
    const proto::PoolTarget& target = targets[i];
    const auto channel = begin(target.address);
    if (channel == nullptr) {
      call->answer(i, {false, error_peer_down("the memory node stops")});
      continue;
    }
    const proto::WritePagesRequest request{
        {batch.stream, batch.epoch, target.session}, batch.ids, batch.pages};
    channel->call(options, proto::encode(request),
                  [this, call, i, address = target.address](const transport::Reply& reply) {
                    end(address);
                    call->answer(i, {reply.answered, reply.status});
                  });
  }
}

}  // namespace strata::memnode
