// Connections of the simulated world.
#include <algorithm>
#include <cstdlib>

#include "base/assert.h"
#include "transport/sim/sim_core.h"

namespace strata::transport {

class SimStream final : public Stream {
 public:
  SimStream(SimCore* core, SimWirePtr wire, int side)
      : core_(core), wire_(std::move(wire)), side_(side) {}
  ~SimStream() override { core_->stream_destroyed(wire_, side_); }
  SimStream(const SimStream&) = delete;
  SimStream& operator=(const SimStream&) = delete;

  void start(StreamEvents* events) override { wire_->ends[side_].events = events; }
  size_t write(absl::Span<const Bytes> pieces, int attached) override {
    STRATA_ASSERT(attached < 0);
    return core_->write(wire_, side_, pieces);
  }
  void set_reading(bool reading) override {
    wire_->ends[side_].reading = reading;
    if (reading) core_->pump_soon(wire_, side_, 0);
  }
  [[nodiscard]] std::string peer() const override {
    return "sim:" + std::to_string(wire_->ends[1 - side_].node);
  }

 private:
  SimCore* const core_;
  const SimWirePtr wire_;
  const int side_;
};

class SimListener final : public Listener {
 public:
  SimListener(SimLife* life, std::string address, Network::AcceptHandler on_accept)
      : life_(life), address_(std::move(address)), on_accept_(std::move(on_accept)) {
    life_->listeners_[address_] = this;
  }
  ~SimListener() override { life_->listeners_.erase(address_); }
  SimListener(const SimListener&) = delete;
  SimListener& operator=(const SimListener&) = delete;
  [[nodiscard]] std::string address() const override { return address_; }
  void accept(std::unique_ptr<Stream> stream) { on_accept_(std::move(stream)); }

 private:
  SimLife* const life_;
  const std::string address_;
  Network::AcceptHandler on_accept_;
};

// --- connecting ---------------------------------------------------------------------------------

std::unique_ptr<Stream> SimLife::connect(const std::string& address) {
  // "sim:<node>:<port>"
  const uint64_t peer = std::strtoull(address.c_str() + 4, nullptr, 10);
  STRATA_ASSERT(address.starts_with("sim:") && peer < core_->nodes_.size());
  auto wire = std::make_shared<SimWire>();
  wire->id = core_->next_wire_id_++;
  wire->ends[0].node = node_;
  wire->ends[0].life = this;
  wire->ends[1].node = static_cast<uint32_t>(peer);
  core_->wires_.emplace(wire->id, wire);
  core_->add(core_->queue_.now() + core_->delay(), nullptr,
             [core = core_, wire, address] { core->client_arrives(wire, address); });
  return std::make_unique<SimStream>(core_, wire, 0);
}

StatusOr<std::unique_ptr<Listener>> SimLife::listen(const std::string& address,
                                                    AcceptHandler on_accept) {
  if (!address.starts_with("sim:" + std::to_string(node_) + ":"))
    return error_invalid_argument(address + " is not an address of this node");
  if (listeners_.count(address) != 0) return error_duplicate_key(address + " is in use");
  return std::make_unique<SimListener>(this, address, std::move(on_accept));
}

void SimCore::client_arrives(const SimWirePtr& wire, const std::string& address) {
  SimEnd& client = wire->ends[0];
  SimEnd& server = wire->ends[1];
  if (client.closed) {
    server.closed = true;
    return forget_if_over(wire);
  }
  const bool unreachable = blocked_.count({client.node, server.node}) != 0 ||
                           blocked_.count({server.node, client.node}) != 0 ||
                           !nodes_[server.node].machine_up;
  if (unreachable) {  // nobody answers; the client tries again as long as it cares to wait
    add(queue_.now() + faults_.retransmit_us, nullptr,
        [this, wire, address] { client_arrives(wire, address); });
    return;
  }
  SimLife* const life = nodes_[server.node].life;
  if (life == nullptr || life->listeners_.count(address) == 0) {
    server.closed = true;
    return close(wire, 0, queue_.now() + delay(), error_peer_down("connection refused"));
  }
  server.life = life;
  // As with a kernel, the client is connected before the process has accepted.
  open(wire, 0, queue_.now() + delay());
  add(0, life, [this, wire, address] { accept(wire, address); });
}

void SimCore::accept(const SimWirePtr& wire, const std::string& address) {
  SimEnd& server = wire->ends[1];
  const auto listener = server.life->listeners_.find(address);
  if (listener == server.life->listeners_.end()) {
    server.closed = true;
    return close(wire, 0, queue_.now() + delay(), error_peer_down("reset by the peer"));
  }
  listener->second->accept(std::make_unique<SimStream>(this, wire, 1));
  open(wire, 1, 0);
}

void SimCore::open(const SimWirePtr& wire, int side, SimTime when) {
  add(when, wire->ends[side].life, [this, wire, side] {
    SimEnd& end = wire->ends[side];
    if (end.events == nullptr || end.closed) return;
    end.open = true;
    end.events->on_open();
    pump_soon(wire, side, 0);
  });
}

// --- bytes --------------------------------------------------------------------------------------

size_t SimCore::write(const SimWirePtr& wire, int from, absl::Span<const Bytes> pieces) {
  SimEnd& own = wire->ends[from];
  const SimEnd& other = wire->ends[1 - from];
  STRATA_ASSERT(own.open);
  if (own.closed) return 0;
  std::string bytes;
  for (const Bytes piece : pieces) bytes.append(piece);
  const size_t offered = bytes.size();
  const uint64_t room =
      faults_.window_bytes - std::min(faults_.window_bytes, other.on_the_way_bytes);
  size_t taken = std::min<size_t>(offered, room);
  const bool cut_short = taken > 1 && one_in(faults_.short_write_one_in);
  if (cut_short) taken = 1 + rng_.below(taken);
  own.blocked = taken < offered;
  // Otherwise there is something on the way, and its arrival makes room.
  if (own.blocked && cut_short) tell_writable(wire, from, queue_.now() + delay());
  bytes.resize(taken);
  const bool breaks = taken > 0 && one_in(faults_.cut_one_in);
  if (breaks) bytes.resize(rng_.below(taken + 1));
  while (!bytes.empty()) {
    const size_t piece = rng_.one_in(2) ? bytes.size() : 1 + rng_.below(bytes.size());
    send(wire, 1 - from, bytes.substr(0, piece), false);
    bytes.erase(0, piece);
  }
  if (breaks) cut(wire, 1 - from);
  return taken;
}

void SimCore::tell_writable(const SimWirePtr& wire, int side, SimTime when) {
  SimLife* const life = wire->ends[side].life;
  if (life == nullptr) return;
  add(when, life, [wire, side] {
    SimEnd& end = wire->ends[side];
    if (end.events != nullptr && !end.closed && std::exchange(end.blocked, false))
      end.events->on_writable();
  });
}

void SimCore::send(const SimWirePtr& wire, int to, std::string bytes, bool end) {
  SimEnd& target = wire->ends[to];
  if (target.cut) return;
  SimTime due = queue_.now() + delay();
  const auto extra = extra_delay_.find({wire->ends[1 - to].node, target.node});
  if (extra != extra_delay_.end()) due += extra->second;
  if (one_in(faults_.lose_one_in)) due += faults_.retransmit_us;
  if (!target.on_the_way.empty()) due = std::max(due, target.on_the_way.back().due);
  target.on_the_way_bytes += bytes.size();
  target.on_the_way.push_back({due, queue_.now(), std::move(bytes), end});
  pump_soon(wire, to, due);
}

void SimCore::pump_soon(const SimWirePtr& wire, int to, SimTime when) {
  if (std::exchange(wire->ends[to].pump_set, true)) return;
  add(when, nullptr, [this, wire, to] {
    wire->ends[to].pump_set = false;
    pump(wire, to);
  });
}

// Brings the first piece on the way to the end, if it can get there.
void SimCore::pump(const SimWirePtr& wire, int to) {
  SimEnd& end = wire->ends[to];
  if (end.on_the_way.empty() || !end.reading || (end.closed && end.life != nullptr)) return;
  const SimPiece& front = end.on_the_way.front();
  if (front.due > queue_.now()) return pump_soon(wire, to, front.due);
  if (blocked_.count({wire->ends[1 - to].node, end.node}) != 0 || !nodes_[end.node].machine_up) {
    if (queue_.now() > front.sent + faults_.user_timeout_us)
      return close(wire, 1 - to, 0, error_peer_down("connection timed out"));
    return pump_soon(wire, to, queue_.now() + faults_.retransmit_us);
  }
  if (end.life == nullptr)  // of a life that is over: the kernel there knows nothing of it
    return close(wire, 1 - to, queue_.now() + delay(), error_peer_down("reset by the peer"));
  if (!end.open) return;  // on_open() pumps again
  end.pump_set = true;    // until this piece has been taken in
  add(0, end.life, [this, wire, to] { take_in(wire, to); });
}

// In the turn of the end's node, which may come much later: it may be paused.
void SimCore::take_in(const SimWirePtr& wire, int to) {
  SimEnd& end = wire->ends[to];
  end.pump_set = false;
  if (end.on_the_way.empty() || !end.reading || end.closed) return;
  const SimPiece piece = std::move(end.on_the_way.front());
  end.on_the_way.pop_front();
  end.on_the_way_bytes -= piece.bytes.size();
  if (wire->ends[1 - to].blocked) tell_writable(wire, 1 - to, queue_.now() + delay());
  pump_soon(wire, to, 0);
  if (piece.end) return close(wire, to, 0, error_peer_down("closed by the peer"));
  if (end.events != nullptr) end.events->on_bytes(piece.bytes);
}

// --- the end of connections ---------------------------------------------------------------------

void SimCore::close(const SimWirePtr& wire, int side, SimTime when, const Status& why) {
  SimEnd& end = wire->ends[side];
  if (end.life == nullptr) end.closed = true;
  if (end.closed) return forget_if_over(wire);
  add(when, end.life, [this, wire, side, why] {
    SimEnd& here = wire->ends[side];
    if (std::exchange(here.closed, true)) return;
    forget_if_over(wire);
    if (here.events != nullptr) here.events->on_closed(why);
  });
}

// The connection breaks. What is on the way may arrive; each side learns in its own time.
void SimCore::cut(const SimWirePtr& wire, int to) {
  wire->ends[0].cut = wire->ends[1].cut = true;
  const std::deque<SimPiece>& pieces = wire->ends[to].on_the_way;
  const SimTime last = std::max(queue_.now(), pieces.empty() ? 0 : pieces.back().due);
  const Status why = error_peer_down("reset by the peer");
  close(wire, to, last + delay(), why);
  close(wire, 1 - to, queue_.now() + rng_.below(4) * delay(), why);
}

void SimCore::stream_destroyed(const SimWirePtr& wire, int side) {
  SimEnd& end = wire->ends[side];
  end.events = nullptr;
  if (end.life == nullptr) return;  // its death has told the peer, or not
  const bool was_closed = std::exchange(end.closed, true);
  if (was_closed || wire->ends[1 - side].closed) return forget_if_over(wire);
  finish(wire, side);
}

// The last that comes from this end: it is closed, or reset, as closing with unread bytes does,
// which may take some of what is on the way with it.
void SimCore::finish(const SimWirePtr& wire, int from) {
  SimEnd& other = wire->ends[1 - from];
  if (rng_.one_in(2) && !other.on_the_way.empty()) {
    std::string& last = other.on_the_way.back().bytes;
    const size_t lost = rng_.below(last.size() + 1);
    other.on_the_way_bytes -= lost;
    last.resize(last.size() - lost);
  }
  send(wire, 1 - from, std::string(), true);
}

void SimCore::end_of_life(const SimWirePtr& wire, int side, SimWorld::Death death) {
  SimEnd& end = wire->ends[side];
  SimEnd& other = wire->ends[1 - side];
  end.life = nullptr;
  end.events = nullptr;
  end.closed = true;
  end.reading = true;
  // What is under way to it finds nobody: see pump(). A task of the old life may have been on it.
  end.pump_set = false;
  pump_soon(wire, side, 0);
  std::deque<SimPiece>& sent = other.on_the_way;
  if (death == SimWorld::Death::kMachine) {
    // What had left the machine arrives; the rest is gone with it, and nobody is told.
    while (!sent.empty() && rng_.one_in(2)) {
      other.on_the_way_bytes -= sent.back().bytes.size();
      sent.pop_back();
    }
    other.cut = true;
  } else {
    finish(wire, side);
  }
  forget_if_over(wire);
}

void SimCore::forget_if_over(const SimWirePtr& wire) {
  if (wire->ends[0].closed && wire->ends[1].closed) wires_.erase(wire->id);
}

}  // namespace strata::transport
