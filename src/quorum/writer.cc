#include "quorum/writer.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/assert.h"

namespace strata::quorum {

Writer::Writer(const QuorumOptions& options, Tenure tenure)
    : options_(options),
      tenure_(std::move(tenure)),
      end_(tenure_.start),
      quorum_durable_(tenure_.start) {
  STRATA_ASSERT(2 * options.write_quorum > options.replicas);
  replicas_.resize(options.replicas);
  for (ReplicaIndex i = 0; i < options.replicas; ++i) ask(i);
}

std::vector<Outgoing> Writer::take_requests() { return std::exchange(outgoing_, {}); }

uint64_t Writer::send(ReplicaIndex index, decltype(Outgoing::body) body) {
  const uint64_t id = ++last_id_;
  outgoing_.push_back({index, id, std::move(body)});
  return id;
}

// --- input ---

Status Writer::append(std::string bytes) {
  if (fenced_by_.has_value()) return error_fenced();
  if (bytes.empty()) return ok_status();
  if (!has_room(bytes.size()))
    return error_no_space("too much of the log waits for a write quorum");
  const uint64_t size = bytes.size();
  retained_.push_back({end_, std::make_shared<const std::string>(std::move(bytes))});
  end_.value += size;
  stream_all();
  return ok_status();
}

void Writer::on_reply(uint64_t id, Reply reply) {
  const auto it = sent_.find(id);
  if (it == sent_.end() || fenced_by_.has_value()) return;
  const auto* change = std::get_if<ChangeReply>(&reply);
  if (change == nullptr) return;
  const Sent sent = it->second;
  sent_.erase(it);
  if (note_fenced(*change)) return;
  if (replicas_[sent.replica].phase == ReplicaPhase::kAsking) {
    on_begin(sent.replica, *change);
  } else {
    on_append(sent.replica, sent, *change);
  }
  count();
  stream_all();
}

void Writer::on_lost(uint64_t id) {
  const auto it = sent_.find(id);
  if (it == sent_.end() || fenced_by_.has_value()) return;
  rest(it->second.replica, error_peer_down("no answer"));
}

void Writer::tick() {
  if (fenced_by_.has_value()) return;
  for (ReplicaIndex i = 0; i < replicas_.size(); ++i) {
    const ReplicaPhase phase = replicas_[i].phase;
    if (phase == ReplicaPhase::kResting || phase == ReplicaPhase::kBehind) ask(i);
  }
}

// --- other replicas ---

namespace {

// What replica each one of before is now; nothing: none.
ReplicasBefore inverse(const ReplicasBefore& before, size_t replicas_before) {
  ReplicasBefore now(replicas_before);
  for (ReplicaIndex index = 0; index < before.size(); ++index) {
    if (!before[index].has_value()) continue;
    STRATA_ASSERT(*before[index] < replicas_before);
    STRATA_ASSERT(!now[*before[index]].has_value());
    now[*before[index]] = index;
  }
  return now;
}

// An order that names them. False: none of its sources is there any more.
bool rename_sources(const ReplicasBefore& now, CatchUpOrder* order) {
  std::vector<ReplicaIndex> sources;
  for (const ReplicaIndex source : order->sources)
    if (now[source].has_value()) sources.push_back(*now[source]);
  order->sources = std::move(sources);
  return !order->sources.empty();
}

}  // namespace

// WR6
void Writer::follow(uint32_t write_quorum, const ReplicasBefore& before) {
  STRATA_ASSERT(write_quorum <= before.size() && 2 * write_quorum > before.size());
  if (fenced_by_.has_value()) return;
  const ReplicasBefore now = inverse(before, replicas_.size());
  STRATA_ASSERT(before.size() >= replicas_.size() || leaves());
  options_.replicas = static_cast<uint32_t>(before.size());
  options_.write_quorum = write_quorum;
  rename_replicas(now);
  for (ReplicaIndex index = 0; index < before.size(); ++index)
    if (!before[index].has_value()) ask(index);
  count();
  stream_all();
}

void Writer::rename_replicas(const ReplicasBefore& now) {
  std::vector<Replica> replicas(options_.replicas);
  for (ReplicaIndex old = 0; old < now.size(); ++old)
    if (now[old].has_value()) replicas[*now[old]] = std::move(replicas_[old]);
  replicas_ = std::move(replicas);
  std::erase_if(sent_, [&](const auto& entry) { return !now[entry.second.replica].has_value(); });
  for (auto& [id, sent] : sent_) sent.replica = *now[sent.replica];
  for (Outgoing& o : std::exchange(outgoing_, {})) {
    if (!now[o.replica].has_value()) continue;
    o.replica = *now[o.replica];
    auto* const order = std::get_if<CatchUpOrder>(&o.body);
    if (order != nullptr && !rename_sources(now, order)) continue;  // the next tick brings another
    outgoing_.push_back(std::move(o));
  }
  if (!leaving_.has_value()) return;
  if (now[leaving_->replica].has_value())
    leaving_->replica = *now[leaving_->replica];
  else
    leaving_.reset();
}

// WR7
void Writer::begin_leave(ReplicaIndex leaving, uint32_t write_quorum) {
  STRATA_ASSERT(!leaving_.has_value());
  STRATA_ASSERT(leaving < replicas_.size());
  STRATA_ASSERT(write_quorum < replicas_.size());
  STRATA_ASSERT(2 * write_quorum > replicas_.size() - 1);
  leaving_ = {leaving, write_quorum};
}

void Writer::cancel_leave() {
  leaving_.reset();
  if (fenced_by_.has_value()) return;
  count();
  stream_all();
}

// Counted, not compared with reached(): an epoch may begin at Lsn 0, where nobody has said a word.
bool Writer::may_leave() const {
  if (!leaving_.has_value() || fenced_by_.has_value()) return false;
  uint32_t others = 0;
  for (ReplicaIndex i = 0; i < replicas_.size(); ++i)
    if (i != leaving_->replica && replicas_[i].votes && replicas_[i].durable >= quorum_durable_)
      ++others;
  return others >= leaving_->write_quorum;
}

// WR2
bool Writer::note_fenced(const ChangeReply& reply) {
  if (reply.state.promised <= tenure_.holder.epoch) return false;
  fenced_by_ = reply.state.promised;
  sent_.clear();
  outgoing_.clear();
  return true;
}

// --- asking: begin is idempotent and says where the replica stands ---

void Writer::ask(ReplicaIndex index) {
  Replica& replica = replicas_[index];
  forget_sent(index);
  replica.phase = ReplicaPhase::kAsking;
  replica.voter_end = end_;
  const uint64_t id = send(index, BeginRequest{tenure_, replica.voter_end});
  sent_[id] = {index, {}, {}, {}};
}

void Writer::on_begin(ReplicaIndex index, const ChangeReply& reply) {
  Replica& replica = replicas_[index];
  // What it said before is past: it may have been replaced.
  replica.durable = {};
  replica.votes = false;
  replica.needs = is_out_of_range(reply.status) ? std::min(reply.next, reply.state.end)
                  : reply.status.ok()           ? reply.state.end
                                                : Lsn{};
  if (is_out_of_range(reply.status)) return fall_behind(index);
  if (!reply.status.ok()) return rest(index, reply.status);
  if (!note_durable(index, reply.state)) return;
  replica.phase = ReplicaPhase::kStreaming;
  replica.next = reply.state.end;
  replica.told = reply.state.quorum_durable;
  replica.last_error = ok_status();
  if (replica.next < retained_begin()) fall_behind(index);
}

void Writer::fall_behind(ReplicaIndex index) {
  Replica& replica = replicas_[index];
  forget_sent(index);
  replica.phase = ReplicaPhase::kBehind;
  CatchUpOrder order{tenure_, replica.voter_end, quorum_durable_, {}};
  for (ReplicaIndex i = 0; i < replicas_.size(); ++i)
    if (i != index && replicas_[i].phase == ReplicaPhase::kStreaming) order.sources.push_back(i);
  if (!order.sources.empty()) send(index, std::move(order));
}

void Writer::rest(ReplicaIndex index, Status why) {
  forget_sent(index);
  replicas_[index].phase = ReplicaPhase::kResting;
  replicas_[index].last_error = std::move(why);
}

// Replies to what was sent before do not count any more.
void Writer::forget_sent(ReplicaIndex index) {
  std::erase_if(sent_, [&](const auto& entry) { return entry.second.replica == index; });
  std::erase_if(outgoing_, [&](const Outgoing& o) { return o.replica == index; });
  replicas_[index].in_flight = 0;
  replicas_[index].news_in_flight = 0;
}

// --- streaming ---

void Writer::on_append(ReplicaIndex index, const Sent& sent, const ChangeReply& reply) {
  Replica& replica = replicas_[index];
  replica.in_flight -= sent.to.value - sent.from.value;
  if (sent.from == sent.to) --replica.news_in_flight;
  if (replica.votes && !reply.state.voting) return ask(index);  // WR4
  if (reply.status.ok()) {
    note_durable(index, reply.state);
    return;
  }
  if (is_out_of_range(reply.status) && reply.state.end >= replica.durable) {
    // Something sent before was lost or came late. What is under way would only meet the gap, too.
    if (!note_durable(index, reply.state)) return;
    forget_sent(index);
    replica.next = reply.state.end;
    return;
  }
  if (is_fenced(reply.status) || is_conflict(reply.status))
    return ask(index);  // not begun: it was replaced
  rest(index, reply.status);
}

void Writer::stream_all() {
  if (fenced_by_.has_value()) return;
  for (ReplicaIndex i = 0; i < replicas_.size(); ++i)
    if (replicas_[i].phase == ReplicaPhase::kStreaming) stream(i);
}

void Writer::stream(ReplicaIndex index) {
  Replica& replica = replicas_[index];
  if (replica.next < retained_begin()) return fall_behind(index);
  while (replica.next < end_ && replica.in_flight < options_.window_bytes) send_bytes(index);
}

void Writer::send_bytes(ReplicaIndex index) {
  Replica& replica = replicas_[index];
  std::string bytes = bytes_from(replica.next);
  const Lsn from = replica.next;
  const Lsn to{from.value + bytes.size()};
  const uint64_t id =
      send(index, AppendRequest{tenure_.holder.epoch, from, std::move(bytes), quorum_durable_});
  sent_[id] = {index, from, to, quorum_durable_};
  replica.in_flight += to.value - from.value;
  replica.next = to;
  replica.told = quorum_durable_;
}

// One that does not answer is not sent more and more of it.
bool Writer::lacks_news(const Replica& replica, Lsn lsn) noexcept {
  constexpr uint32_t kNewsInFlightMax = 16;
  return replica.phase == ReplicaPhase::kStreaming && replica.told < lsn &&
         replica.news_in_flight < kNewsInFlightMax;
}

bool Writer::has_news() const noexcept {
  if (fenced_by_.has_value()) return false;
  return std::any_of(replicas_.begin(), replicas_.end(), [this](const Replica& replica) {
    return lacks_news(replica, quorum_durable_);
  });
}

// WR8. Appliers wait for bytes to be quorum-durable (S1).
void Writer::tell(Lsn lsn) {
  if (fenced_by_.has_value()) return;
  lsn = std::min(lsn, quorum_durable_);
  for (ReplicaIndex i = 0; i < replicas_.size(); ++i)
    if (lacks_news(replicas_[i], lsn)) send_news(i);
}

void Writer::send_news(ReplicaIndex index) {
  Replica& replica = replicas_[index];
  const uint64_t id =
      send(index, AppendRequest{tenure_.holder.epoch, replica.next, {}, quorum_durable_});
  sent_[id] = {index, replica.next, replica.next, quorum_durable_};
  ++replica.news_in_flight;
  replica.told = quorum_durable_;
}

// At least one byte, at most request_bytes_max.
std::string Writer::bytes_from(Lsn at) const {
  auto it = std::upper_bound(retained_.begin(), retained_.end(), at,
                             [](Lsn l, const Piece& p) { return l < p.at; });
  STRATA_ASSERT(it != retained_.begin());
  --it;
  std::string out;
  for (; it != retained_.end() && out.size() < options_.request_bytes_max; ++it) {
    const uint64_t skip = it->at < at ? at.value - it->at.value : 0;
    out.append(*it->bytes, skip, options_.request_bytes_max - out.size());
  }
  return out;
}

// --- counting ---

// False: the replica is left alone. Replies may come in any order, so the largest end counts.
bool Writer::note_durable(ReplicaIndex index, const ReplicaState& state) {
  Replica& replica = replicas_[index];
  if (state.end > end_) {
    rest(index, error_corruption("it holds bytes that nobody wrote: up to lsn " +
                                 std::to_string(state.end.value)));
    replica.votes = false;
    return false;
  }
  replica.durable = std::max(replica.durable, state.end);
  replica.needs = std::max(replica.needs, state.end);
  replica.votes = state.voting;  // WR4: what one says that lost its tail proves nothing
  return true;
}

// Up to where so many of the replicas have everything.
Lsn Writer::reached(std::optional<ReplicaIndex> without, uint32_t write_quorum) const {
  std::vector<Lsn> ends;
  for (ReplicaIndex i = 0; i < replicas_.size(); ++i)
    if (i != without) ends.push_back(replicas_[i].votes ? replicas_[i].durable : Lsn{});
  std::sort(ends.begin(), ends.end(), std::greater<>());
  return ends[write_quorum - 1];
}

// WR1
void Writer::count() {
  Lsn end = reached(std::nullopt, options_.write_quorum);
  if (leaving_.has_value())  // WR7
    end = std::min(end, reached(leaving_->replica, leaving_->write_quorum));
  if (end > quorum_durable_) quorum_durable_ = std::max(quorum_durable_, whole_until(end));
  trim();
}

// The end of the last piece that lies before `reached` as a whole.
Lsn Writer::whole_until(Lsn reached) const {
  if (reached >= end_) return end_;
  const auto next = std::upper_bound(retained_.begin(), retained_.end(), reached,
                                     [](Lsn l, const Piece& p) { return l < p.at; });
  return next == retained_.begin() ? Lsn{} : std::prev(next)->at;
}

// WR3. Below what is quorum-durable, pieces go when every streaming replica has them, or when they
// are more than retain_bytes.
void Writer::trim() {
  Lsn needed = quorum_durable_;
  for (const Replica& replica : replicas_)
    if (replica.phase == ReplicaPhase::kStreaming) needed = std::min(needed, replica.durable);
  while (!retained_.empty()) {
    const Piece& piece = retained_.front();
    const Lsn piece_end{piece.at.value + piece.bytes->size()};
    const bool too_much = end_.value - piece.at.value > options_.retain_bytes;
    if (piece_end > quorum_durable_ || (piece_end > needed && !too_much)) return;
    retained_.pop_front();
  }
}

// WR5
Lsn Writer::keep_from(Lsn wanted) const noexcept {
  Lsn slowest = wanted;
  for (const Replica& replica : replicas_) slowest = std::min(slowest, replica.needs);
  const uint64_t kept_at_most = std::min(quorum_durable_.value, options_.keep_bytes_max);
  return std::max(slowest, std::min(wanted, Lsn{quorum_durable_.value - kept_at_most}));
}

std::vector<Writer::ReplicaStatus> Writer::status() const {
  std::vector<ReplicaStatus> all;
  for (const Replica& replica : replicas_)
    all.push_back({replica.phase, replica.durable, replica.votes, replica.last_error});
  return all;
}

}  // namespace strata::quorum
