#include "transport/calls/internal/link.h"

#include <array>
#include <utility>

#include "base/assert.h"

namespace strata::transport {
namespace {
constexpr size_t kPiecesMax = 64;
}  // namespace

std::shared_ptr<Link> Link::start(const World& world, uint64_t id, std::unique_ptr<Stream> stream,
                                  std::unique_ptr<Connection> connection, Owner* owner,
                                  std::shared_ptr<Counters> counters, uint64_t output_bytes_max) {
  std::shared_ptr<Link> link(new Link(world, id, std::move(stream), std::move(connection), owner,
                                      std::move(counters), output_bytes_max));
  link->stream_->start(link.get());
  link->arm_tick();
  return link;
}

Link::Link(const World& world, uint64_t id, std::unique_ptr<Stream> stream,
           std::unique_ptr<Connection> connection, Owner* owner, std::shared_ptr<Counters> counters,
           uint64_t output_bytes_max)
    : world_(world),
      id_(id),
      stream_(std::move(stream)),
      connection_(std::move(connection)),
      owner_(owner),
      counters_(std::move(counters)),
      output_bytes_max_(output_bytes_max) {}

Link::~Link() { STRATA_ASSERT(owner_ == nullptr); }

void Link::close(std::shared_ptr<Link> link) {
  if (link == nullptr) return;
  link->owner_ = nullptr;
  link->world_.executor->cancel(std::exchange(link->tick_timer_, 0));
  if (link->told_ready_) count(link->counters_->connections_closed);
  Executor* const executor = link->world_.executor;
  executor->post([link = std::move(link)]() mutable { link.reset(); });  // LN2
}

void Link::send(const FrameHeader& header, std::string payload, FileDescriptor attached) {
  connection_->send(header, std::move(payload), std::move(attached));
  if (!taking_in_) write_soon();
}

void Link::on_open() {
  open_ = true;
  write();
}

void Link::on_bytes(Bytes bytes) {
  if (owner_ == nullptr) return;
  arrived_ns_ = world_.executor->now_ns();
  taking_in_ = true;
  bool refused = false;
  const Status taken = connection_->receive(bytes, arrived_ns_, [&](const Frame& frame) {
    note_ready();
    refused = owner_ != nullptr && !owner_->on_frame(this, frame);
    return owner_ != nullptr && !refused;
  });
  taking_in_ = false;
  if (owner_ == nullptr) return;
  if (refused) {
    count(counters_->refused(Refusal::kOutOfTurn));
    return fail(error_corruption("a frame that makes no sense"));
  }
  if (!taken.ok()) {
    count(counters_->refused(connection_->refusal()));
    return fail(taken);
  }
  if (connection_->ready()) note_ready();
  if (owner_ != nullptr) write();
}

void Link::note_ready() {
  if (std::exchange(told_ready_, true)) return;
  count(counters_->connections_opened);
  arm_tick();
  owner_->on_ready(this);
}

void Link::on_writable() {
  stuck_ = false;
  write();
}

void Link::write_soon() {
  if (std::exchange(write_posted_, true)) return;
  world_.executor->post([weak = weak_from_this()] {
    const std::shared_ptr<Link> link = weak.lock();
    if (link == nullptr) return;
    link->write_posted_ = false;
    link->write();
  });
}

void Link::write() {
  if (owner_ == nullptr || !open_) return;
  OutputQueue& output = connection_->output();
  const bool had = output.waiting() > 0;
  while (output.waiting() > 0 && !stuck_) {
    std::array<Bytes, kPiecesMax> pieces;
    const OutputQueue::Batch batch = output.front(absl::MakeSpan(pieces));
    size_t offered = 0;
    for (size_t i = 0; i < batch.pieces; i++) offered += pieces[i].size();
    const size_t taken =
        stream_->write(absl::MakeSpan(pieces.data(), batch.pieces), batch.attached);
    stuck_ = taken < offered;
    if (taken == 0) break;
    output.consume(taken);
    connection_->note_written(world_.executor->now_ns());
  }
  update_reading();
  if (had && output.waiting() == 0) owner_->on_room(this);
}

void Link::set_wanted(bool wanted) {
  wanted_ = wanted;
  update_reading();
}

void Link::update_reading() {
  const bool reading = wanted_ && connection_->output().waiting() <= output_bytes_max_;
  if (reading == reading_) return;
  reading_ = reading;
  connection_->set_reading(reading, world_.executor->now_ns());
  stream_->set_reading(reading);
}

void Link::arm_tick() {
  world_.executor->cancel(std::exchange(tick_timer_, 0));
  const uint64_t when_ns = connection_->next_tick_ns();
  if (when_ns != UINT64_MAX) tick_timer_ = world_.executor->run_at(when_ns, [this] { tick(); });
}

void Link::tick() {
  tick_timer_ = 0;
  const Status alive = connection_->tick(world_.executor->now_ns());
  if (!alive.ok()) {
    count(counters_->refused(connection_->refusal()));
    return fail(alive);
  }
  write();
  if (owner_ != nullptr) arm_tick();
}

void Link::on_closed(const Status& why) {
  if (owner_ != nullptr) fail(why);
}

void Link::fail(const Status& why) {
  const std::shared_ptr<Link> self = shared_from_this();  // the owner lets go in on_closed()
  if (told_ready_) count(counters_->connections_closed);
  told_ready_ = false;
  world_.executor->cancel(std::exchange(tick_timer_, 0));
  Owner* const owner = std::exchange(owner_, nullptr);
  owner->on_closed(this, why);
  world_.executor->post([self] {});  // LN2
}

}  // namespace strata::transport
