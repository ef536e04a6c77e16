#include "clients/fusion/tit_reader.h"

#include <cstddef>
#include <utility>

#include "base/assert.h"
#include "base/bytes.h"
#include "proto/fusion.h"

namespace strata::clients {

using transport::RegionOperation;

TitReader::TitReader(const LeaseCheck* lease, TitOwners* owners, PublishedSlots* own,
                     std::function<uint64_t()> now_us, uint64_t read_us_max)
    : lease_(lease),
      owners_(owners),
      own_(own),
      now_us_(std::move(now_us)),
      read_us_max_(read_us_max) {}

TitReader::~TitReader() = default;

void TitReader::opened(NodeId server, std::shared_ptr<transport::RemoteRegion> region,
                       uint64_t slots) {
  STRATA_ASSERT(slots != 0 && (slots & (slots - 1)) == 0);
  auto table = std::make_shared<const Table>(Table{std::move(region), slots});
  const MutexLock lock(mutex_);
  tables_[server.value].swap(table);
}

void TitReader::closed(NodeId server) {
  std::shared_ptr<const Table> table;
  const MutexLock lock(mutex_);
  tables_[server.value].swap(table);
}

std::shared_ptr<const TitReader::Table> TitReader::table_of(NodeId server) const {
  const MutexLock lock(mutex_);
  return tables_[server.value];
}

bool TitReader::read_slot(TrxId id, TrxLookup* out, bool* ended) {
  const std::shared_ptr<const Table> table = table_of(node_of(id));
  if (table == nullptr) return false;
  const uint64_t sequence = sequence_of(id);
  const uint64_t at = (sequence & (table->slots - 1)) * sizeof(proto::TitSlot);
  alignas(8) char sequence_bytes[8] = {};
  alignas(8) char word_bytes[8] = {};
  RegionOperation operations[] = {
      RegionOperation::get(at + offsetof(proto::TitSlot, sequence), sequence_bytes),
      RegionOperation::get(at + offsetof(proto::TitSlot, word), word_bytes)};
  const Epoch epoch = lease_->epoch();
  counters_.gets.fetch_add(1, std::memory_order_relaxed);
  if (!table->region->run(absl::MakeSpan(operations), now_us_() + read_us_max_).ok())
    return false;  // whoever has it is asked
  const uint64_t word = load_u64(word_bytes);
  if (load_u64(sequence_bytes) != sequence ||
      proto::tit_tag_of(word) != proto::tit_tag(sequence, table->slots))
    return false;
  // FC8, in this order: a renewed lease closes tables first.
  if (!lease_->valid(epoch) || table_of(node_of(id)) != table) return false;
  const uint8_t state = proto::tit_state(word);
  if (state == static_cast<uint8_t>(TrxState::kNone) || state > proto::kTitEnded) return false;
  *ended = state == proto::kTitEnded;
  *out = TrxLookup{*ended ? TrxState::kCommitting : static_cast<TrxState>(state),
                   proto::tit_cts(word), Lsn{}};
  return true;
}

StatusOr<TrxLookup> TitReader::read(TrxId id) {
  TrxLookup found;
  bool ended = false;
  if (read_slot(id, &found, &ended)) return found;
  counters_.calls.fetch_add(1, std::memory_order_relaxed);
  return owners_->read(id);
}

StatusOr<TrxLookup> TitReader::read_told(TrxId id) {
  TrxLookup found;
  bool ended = false;
  if (read_slot(id, &found, &ended) && !ended) return found;
  counters_.calls.fetch_add(1, std::memory_order_relaxed);
  return owners_->read(id);  // which makes it durable (FC9)
}

bool TitReader::announce_waiter(TrxId holder) {
  const std::shared_ptr<const Table> table = table_of(node_of(holder));
  if (table == nullptr) return false;
  const uint64_t sequence = sequence_of(holder);
  const uint64_t at = (sequence & (table->slots - 1)) * sizeof(proto::TitSlot);
  alignas(8) char sequence_bytes[8] = {};
  alignas(8) char word_bytes[8] = {};
  RegionOperation operations[] = {
      RegionOperation::fetch_add(at + offsetof(proto::TitSlot, waiters), 1),
      RegionOperation::get(at + offsetof(proto::TitSlot, sequence), sequence_bytes),
      RegionOperation::get(at + offsetof(proto::TitSlot, word), word_bytes)};
  counters_.gets.fetch_add(1, std::memory_order_relaxed);
  if (!table->region->run(absl::MakeSpan(operations), now_us_() + read_us_max_).ok()) return false;
  if (load_u64(sequence_bytes) != sequence || table_of(node_of(holder)) != table) return false;
  const uint64_t word = load_u64(word_bytes);
  if (proto::tit_state(word) != proto::kTitEnded) return true;
  // Its locks are given up, but read_slot() takes it for undecided until it is durable (FC9).
  counters_.calls.fetch_add(1, std::memory_order_relaxed);
  return owners_->read(holder).ok();
}

StatusOr<TrxLookup> TitReader::wait_decided(TrxId id) {
  counters_.calls.fetch_add(1, std::memory_order_relaxed);
  return owners_->wait_decided(id);
}

}  // namespace strata::clients
