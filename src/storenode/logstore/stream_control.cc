#include "storenode/logstore/internal/stream_control.h"

#include <cstddef>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/crc32c.h"
#include "base/fault.h"

namespace strata::logstore {
namespace {

constexpr uint64_t kControlMagic = 0x3143455254535453ull;  // "STSTREC1"
constexpr uint32_t kControlFormat = 1;
constexpr size_t kSlotBytes = 16384;

struct SlotEntry {
  uint64_t epoch;
  uint64_t start;
};

// One slot. magic, format and crc32c (of format and of everything behind crc32c) keep their places
// in every later format.
struct Slot {
  uint64_t magic;
  uint32_t format;
  uint32_t crc32c;
  uint64_t slot_sequence;
  uint64_t cluster_id;
  uint32_t stream;
  uint32_t entry_count;
  uint64_t promised_epoch;
  uint64_t promised_token;
  uint64_t start_lsn;
  uint64_t voter_end;
  uint64_t cut_sequence;
  uint64_t cut_lsn;
  uint64_t last_sequence;
  uint64_t quorum_durable;
  SlotEntry entries[kHistoryEntriesMax];
  char unused[kSlotBytes - 104 - sizeof(SlotEntry) * kHistoryEntriesMax];
};
static_assert(sizeof(Slot) == kSlotBytes);
static_assert(offsetof(Slot, entries) == 104);
constexpr size_t kCrcBegin = offsetof(Slot, slot_sequence);

uint32_t slot_crc(const Slot& slot) noexcept {
  return crc32c(reinterpret_cast<const char*>(&slot) + kCrcBegin, kSlotBytes - kCrcBegin,
                crc32c(&slot.format, sizeof(slot.format)));
}

std::unique_ptr<Slot> make_slot(const ControlState& state, uint64_t cluster_id, StreamId stream,
                                uint64_t slot_sequence) {
  auto slot = std::make_unique<Slot>();
  std::memset(slot.get(), 0, sizeof(*slot));
  slot->magic = kControlMagic;
  slot->format = kControlFormat;
  slot->slot_sequence = slot_sequence;
  slot->cluster_id = cluster_id;
  slot->stream = stream.value;
  slot->entry_count = static_cast<uint32_t>(state.history.size());
  slot->promised_epoch = state.promised.epoch.value;
  slot->promised_token = state.promised.token;
  slot->start_lsn = state.start.value;
  slot->voter_end = state.voter_end.value;
  slot->cut_sequence = state.cut_sequence;
  slot->cut_lsn = state.cut_lsn.value;
  slot->last_sequence = state.last_sequence;
  slot->quorum_durable = state.quorum_durable.value;
  for (size_t i = 0; i < state.history.size(); ++i)
    slot->entries[i] = {state.history[i].epoch.value, state.history[i].start.value};
  slot->crc32c = slot_crc(*slot);
  return slot;
}

// A right checksum says that someone wrote it so, not that it makes sense.
bool decode_slot(const Slot& slot, uint64_t place, ControlState* state) {
  if (slot.slot_sequence % 2 != place || slot.entry_count > kHistoryEntriesMax) return false;
  state->promised = {Epoch{slot.promised_epoch}, slot.promised_token};
  state->history.clear();
  for (size_t i = 0; i < slot.entry_count; ++i)
    state->history.push_back({Epoch{slot.entries[i].epoch}, Lsn{slot.entries[i].start}});
  state->start = Lsn{slot.start_lsn};
  state->voter_end = Lsn{slot.voter_end};
  state->cut_sequence = slot.cut_sequence;
  state->cut_lsn = Lsn{slot.cut_lsn};
  state->last_sequence = slot.last_sequence;
  state->quorum_durable = Lsn{slot.quorum_durable};
  return check_history(state->history).ok() && last_epoch(state->history) <= state->promised.epoch;
}

}  // namespace

StreamControl::StreamControl(FileSystem* fs, std::string directory, std::string path,
                             uint64_t cluster_id, StreamId stream)
    : fs_(fs),
      directory_(std::move(directory)),
      path_(std::move(path)),
      cluster_id_(cluster_id),
      stream_(stream) {}

Status StreamControl::open(ControlState* state) {
  STRATA_ASSIGN_OR_RETURN(std::unique_ptr<File> file, fs_->open(path_, {}));
  // A killed process may have left its last slot in the page cache only (SC3); the folder was
  // synced by the store.
  STRATA_RETURN_IF_ERROR(file->sync_data());
  auto slots = std::make_unique<Slot[]>(2);
  size_t got = 0;
  STRATA_RETURN_IF_ERROR(file->read_at(0, slots.get(), 2 * kSlotBytes, &got));
  bool ours = false;
  bool found = false;
  for (uint64_t i = 0; i < 2; ++i) {
    const Slot& slot = slots[i];
    if (got < (i + 1) * kSlotBytes || slot.magic != kControlMagic) continue;
    ours = true;
    if (slot.crc32c != slot_crc(slot)) continue;
    if (slot.format > kControlFormat)
      return error_unsupported(path_ + " was written by a newer version (format " +
                               std::to_string(slot.format) +
                               "); nothing was changed; to do: start that version");
    if (slot.cluster_id != cluster_id_ || slot.stream != stream_.value)
      return error_wrong_database(path_ + " belongs to another cluster or stream");
    ControlState decoded;
    if (!decode_slot(slot, i, &decoded)) continue;
    if (found && slot.slot_sequence < slot_sequence_) continue;
    slot_sequence_ = slot.slot_sequence;
    *state = std::move(decoded);
    found = true;
  }
  if (!found)
    return error_corruption((ours ? path_ + " is damaged (neither copy is whole)"
                                  : path_ + " is not a stream's control file") +
                            "; its promises are lost: remove the stream's files from this node and "
                            "let it join anew");
  file_ = std::move(file);
  return ok_status();
}

Status StreamControl::publish(const ControlState& state) {
  STRATA_ASSERT(state.history.size() <= kHistoryEntriesMax);
  if (file_ == nullptr) return write_new_file(state);
  const uint64_t sequence = slot_sequence_ + 1;
  const auto slot = make_slot(state, cluster_id_, stream_, sequence);
  Status written = file_->write_at((sequence % 2) * kSlotBytes, slot.get(), kSlotBytes);
  if (written.ok() && fault(FaultPoint::node_log_control)) written = error_internal("fault point");
  if (written.ok()) written = file_->sync_data();
  if (!written.ok()) {
    file_ = nullptr;  // SC2
    return written;
  }
  slot_sequence_ = sequence;
  return ok_status();
}

// Both slots hold the same state. Under another name until whole: a crash leaves the old file.
Status StreamControl::write_new_file(const ControlState& state) {
  const std::string temporary = path_ + ".tmp";
  STRATA_RETURN_IF_ERROR(fs_->remove(temporary));
  STRATA_ASSIGN_OR_RETURN(std::unique_ptr<File> file,
                          fs_->open(temporary, {.create = true, .exclusive = true}));
  const uint64_t first = slot_sequence_ + 2;
  for (uint64_t sequence = first; sequence < first + 2; ++sequence) {
    const auto slot = make_slot(state, cluster_id_, stream_, sequence);
    STRATA_RETURN_IF_ERROR(file->write_at((sequence % 2) * kSlotBytes, slot.get(), kSlotBytes));
  }
  STRATA_RETURN_IF_ERROR(file->sync_data());
  STRATA_RETURN_IF_ERROR(fs_->rename(temporary, path_));
  STRATA_RETURN_IF_ERROR(fs_->sync_directory(directory_));
  STRATA_ASSIGN_OR_RETURN(file_, fs_->open(path_, {}));
  slot_sequence_ = first + 1;
  return ok_status();
}

}  // namespace strata::logstore
