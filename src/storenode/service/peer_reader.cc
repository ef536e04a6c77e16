#include "storenode/service/peer_reader.h"

#include <utility>

#include "proto/calls/calls.h"
#include "proto/log_messages.h"
#include "proto/methods.h"

namespace strata::storenode {

namespace {

quorum::ReadReply no_answer(const Status& why) {
  quorum::ReadReply reply;
  reply.status = error_peer_down(std::string_view(why.message().data(), why.message().size()));
  return reply;
}

}  // namespace

PeerReader::PeerReader(const transport::World& world, const transport::Secret& secret,
                       AddressOf address_of, uint64_t timeout_us)
    : world_(world), secret_(secret), address_of_(std::move(address_of)), timeout_us_(timeout_us) {}

PeerReader::~PeerReader() {
  Channels channels;
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
    channels.swap(channels_);
  }
}

// Channels are made once and kept: there are as many as nodes in a group.
transport::Channel* PeerReader::channel_to(const std::string& address) {
  const MutexLock lock(mutex_);
  if (stopped_) return nullptr;
  std::unique_ptr<transport::Channel>& channel = channels_[address];
  if (channel == nullptr)
    channel =
        std::make_unique<transport::Channel>(world_, secret_, address, transport::ChannelOptions{});
  return channel.get();
}

void PeerReader::fetch(StreamId stream, quorum::ReplicaIndex peer,
                       const quorum::ReadRequest& request, SelfCatchUp::FetchDone done) {
  const std::string address = address_of_(stream, peer);
  if (address.empty()) return done(no_answer(error_peer_down("the peer's address is not known")));
  transport::Channel* const channel = channel_to(address);
  if (channel == nullptr) return done(no_answer(error_peer_down("this node stops")));
  const uint64_t deadline_us = world_.executor->now_us() + timeout_us_;
  channel->call(proto::call_of(proto::kLogRead, deadline_us), proto::encode(stream, request),
                [done = std::move(done)](const transport::Reply& reply) {
                  if (!reply.status.ok()) return done(no_answer(reply.status));
                  auto decoded = proto::decode_read_reply(reply.payload);
                  decoded.ok() ? done(*std::move(decoded)) : done(no_answer(decoded.status()));
                });
}

}  // namespace strata::storenode
