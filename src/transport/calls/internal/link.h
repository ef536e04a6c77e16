// A Connection on a Stream: reads, writes, ticks, closes. Lives in the executor's thread.
//
//   LN1  Everything sent while frames are being taken in, or in one turn of the executor, is
//        written by one call.
//   LN2  on_closed() is the last call to the owner, and there is none after close(). A link, and
//        with it its stream, is destroyed in a later task of the executor, never inside its own
//        events.
//   LN3  Nothing more is read while more than output_bytes_max wait to be written, or while the
//        owner has enough to do.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "transport/calls/connection.h"
#include "transport/world.h"

namespace strata::transport {

class Link final : public StreamEvents, public std::enable_shared_from_this<Link> {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void on_ready(Link* link) = 0;
    // False: the frame may not be; the link closes.
    virtual bool on_frame(Link* link, const Frame& frame) = 0;
    virtual void on_room(Link*) {}  // everything queued has been written
    virtual void on_closed(Link* link, const Status& why) = 0;
  };

  // `id` is the owner's, for the owner.
  static std::shared_ptr<Link> start(const World& world, uint64_t id,
                                     std::unique_ptr<Stream> stream,
                                     std::unique_ptr<Connection> connection, Owner* owner,
                                     std::shared_ptr<Counters> counters, uint64_t output_bytes_max);
  ~Link() override;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  void send(const FrameHeader& header, std::string payload, FileDescriptor attached = {});
  void set_wanted(bool wanted);  // whether the owner wants more frames (LN3)
  // No event comes after this. Gives the link, and its stream, to the executor to be destroyed.
  static void close(std::shared_ptr<Link> link);

  [[nodiscard]] uint64_t id() const noexcept { return id_; }
  [[nodiscard]] const Connection& connection() const noexcept { return *connection_; }
  [[nodiscard]] bool carries_descriptors() const { return stream_->carries_descriptors(); }
  [[nodiscard]] uint64_t queued() const noexcept { return connection_->output().queued(); }
  [[nodiscard]] uint64_t written() const noexcept { return connection_->output().written(); }
  [[nodiscard]] std::string peer() const { return stream_->peer(); }
  [[nodiscard]] std::string other_end() const { return stream_->other_end(); }
  [[nodiscard]] bool ended_by_peer() const { return stream_->ended_by_peer(); }
  [[nodiscard]] uint64_t arrived_ns() const noexcept {
    return arrived_ns_;
  }  // of the frame at hand

 private:
  Link(const World& world, uint64_t id, std::unique_ptr<Stream> stream,
       std::unique_ptr<Connection> connection, Owner* owner, std::shared_ptr<Counters> counters,
       uint64_t output_bytes_max);
  void on_open() override;
  void on_bytes(Bytes bytes) override;
  void on_writable() override;
  void on_closed(const Status& why) override;
  void note_ready();
  void write_soon();
  void write();
  void update_reading();
  void arm_tick();
  void tick();
  void fail(const Status& why);

  const World world_;
  const uint64_t id_;
  const std::unique_ptr<Stream> stream_;
  const std::unique_ptr<Connection> connection_;
  Owner* owner_;  // null once closed
  const std::shared_ptr<Counters> counters_;
  const uint64_t output_bytes_max_;
  bool open_ = false;
  bool taking_in_ = false;
  bool write_posted_ = false;
  bool stuck_ = false;  // the stream took less than it was given; on_writable() follows
  bool told_ready_ = false;
  bool wanted_ = true;
  bool reading_ = true;
  uint64_t arrived_ns_ = 0;
  Executor::TimerId tick_timer_ = 0;
};

}  // namespace strata::transport
