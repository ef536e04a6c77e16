#include "wal/control_file.h"

#include <cstddef>
#include <cstring>

#include "base/aligned.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/crc32c.h"

namespace strata {
namespace {

constexpr uint64_t kControlMagic = 0x3143415441525453ull;  // "STRATAC1"
constexpr uint32_t kControlFormat = 1;
constexpr size_t kSlotBytes = kDirectIoAlignment;  // a block each: one is torn, not both
constexpr size_t kProfileBytes = 64;

// One slot. magic, format and crc32c (over everything behind it, to the end of the slot) keep their
// place in every later format, so that an older binary can tell "newer" from "damaged".
struct ControlSlot {
  uint64_t magic;
  uint32_t format;
  uint32_t crc32c;
  uint64_t sequence;
  uint64_t database_id;
  uint32_t data_format;
  uint32_t page_bytes;
  uint64_t checkpoint_lsn;
  uint64_t llsn_bias;
  uint64_t checkpoint_count;
  uint8_t node;
  uint8_t clean_shutdown;
  uint8_t pad[6];
  char profile[kProfileBytes];
  char unused[kSlotBytes - 136];
};
static_assert(sizeof(ControlSlot) == kSlotBytes);
static_assert(offsetof(ControlSlot, profile) == 72);
constexpr size_t kCrcBegin = offsetof(ControlSlot, sequence);

uint32_t slot_crc(const ControlSlot& slot) noexcept {
  const uint32_t seed = crc32c(&slot.format, sizeof(slot.format));
  return crc32c(reinterpret_cast<const char*>(&slot) + kCrcBegin, kSlotBytes - kCrcBegin, seed);
}

void fill_slot(const ControlData& data, uint64_t sequence, ControlSlot* slot) noexcept {
  STRATA_ASSERT(data.profile.size() < kProfileBytes);
  std::memset(slot, 0, sizeof(*slot));
  slot->magic = kControlMagic;
  slot->format = kControlFormat;
  slot->sequence = sequence;
  slot->database_id = data.database_id;
  slot->data_format = data.data_format;
  slot->page_bytes = data.page_bytes;
  slot->checkpoint_lsn = data.checkpoint_lsn.value;
  slot->llsn_bias = data.llsn_bias;
  slot->checkpoint_count = data.checkpoint_count;
  slot->node = data.node.value;
  slot->clean_shutdown = data.clean_shutdown ? 1 : 0;
  std::memcpy(slot->profile, data.profile.data(), data.profile.size());
  slot->crc32c = slot_crc(*slot);
}

// A right checksum says that someone wrote it so, not that it was us.
bool is_sound(const ControlSlot& slot, uint64_t place) noexcept {
  return slot.profile[kProfileBytes - 1] == '\0' && slot.sequence % 2 == place;
}

ControlData data_of(const ControlSlot& slot) {
  ControlData data;
  data.database_id = slot.database_id;
  data.data_format = slot.data_format;
  data.page_bytes = slot.page_bytes;
  data.profile.assign(slot.profile, strnlen(slot.profile, kProfileBytes));
  data.node = NodeId{slot.node};
  data.checkpoint_lsn = Lsn{slot.checkpoint_lsn};
  data.llsn_bias = slot.llsn_bias;
  data.checkpoint_count = slot.checkpoint_count;
  data.clean_shutdown = slot.clean_shutdown != 0;
  return data;
}

std::string parent_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

Status check_versions(const ControlSlot& slot, const std::string& path) {
  if (slot.format != kControlFormat || slot.data_format != kDataFormat)
    return error_unsupported(
        "control file " + path + " was written by another version (format " +
        std::to_string(slot.format) + ", data format " + std::to_string(slot.data_format) +
        "; this one knows " + std::to_string(kControlFormat) + " and " +
        std::to_string(kDataFormat) + "); nothing was changed; to do: start that version");
  if (slot.page_bytes != ControlData{}.page_bytes)
    return error_unsupported("control file " + path + " has page size " +
                             std::to_string(slot.page_bytes) + ", this version only knows " +
                             std::to_string(ControlData{}.page_bytes));
  return ok_status();
}

}  // namespace

ControlFile::ControlFile(std::unique_ptr<File> file, ControlData data, uint64_t sequence)
    : file_(std::move(file)), data_(std::move(data)), sequence_(sequence) {}

StatusOr<std::unique_ptr<ControlFile>> ControlFile::create(FileSystem* fs, const std::string& path,
                                                           const ControlData& data) {
  STRATA_ASSIGN_OR_RETURN(const bool present, fs->exists(path));
  if (present) return error_duplicate_key("control file " + path + " exists already");
  // Under another name until whole: a crash here leaves no control file rather than a damaged one.
  const std::string temporary = path + ".tmp";
  STRATA_RETURN_IF_ERROR(fs->remove(temporary));
  STRATA_ASSIGN_OR_RETURN(std::unique_ptr<File> file,
                          fs->open(temporary, {.create = true, .exclusive = true}));
  auto slot = std::make_unique<ControlSlot>();
  for (uint64_t sequence = 0; sequence < 2; sequence++) {
    fill_slot(data, sequence, slot.get());
    STRATA_RETURN_IF_ERROR(file->write_at(sequence * kSlotBytes, slot.get(), kSlotBytes));
  }
  STRATA_RETURN_IF_ERROR(file->sync_data());
  STRATA_RETURN_IF_ERROR(fs->rename(temporary, path));
  STRATA_RETURN_IF_ERROR(fs->sync_directory(parent_of(path)));
  STRATA_ASSIGN_OR_RETURN(file, fs->open(path, {}));
  return std::unique_ptr<ControlFile>(new ControlFile(std::move(file), data, 1));
}

StatusOr<std::unique_ptr<ControlFile>> ControlFile::open(FileSystem* fs, const std::string& path) {
  STRATA_ASSIGN_OR_RETURN(std::unique_ptr<File> file, fs->open(path, {}));
  // A killed process may have left its last slot, or the file's name, in the page cache only (C3).
  STRATA_RETURN_IF_ERROR(file->sync_data());
  STRATA_RETURN_IF_ERROR(fs->sync_directory(parent_of(path)));
  auto slots = std::make_unique<ControlSlot[]>(2);
  size_t got = 0;
  STRATA_RETURN_IF_ERROR(file->read_at(0, slots.get(), 2 * kSlotBytes, &got));
  const ControlSlot* newest = nullptr;
  bool ours = false;
  for (uint64_t i = 0; i < 2; i++) {
    const ControlSlot& slot = slots[i];
    if (got < (i + 1) * kSlotBytes || slot.magic != kControlMagic) continue;
    ours = true;
    if (slot.crc32c != slot_crc(slot)) continue;
    STRATA_RETURN_IF_ERROR(check_versions(slot, path));
    if (!is_sound(slot, i)) continue;
    // C4
    if (newest != nullptr && slot.sequence - newest->sequence != 1 &&
        newest->sequence - slot.sequence != 1)
      return error_corruption("control file " + path +
                              " is damaged (its copies are not of one history: has the disk lost a "
                              "write it had acknowledged?); restore the data directory from a "
                              "backup, nothing was changed");
    if (newest == nullptr || slot.sequence - newest->sequence == 1) newest = &slot;
  }
  if (newest == nullptr)
    return error_corruption((ours ? "control file " + path + " is damaged (neither copy is whole)"
                                  : path + " is not a Strata control file") +
                            "; restore the data directory from a backup, nothing was changed");
  return std::unique_ptr<ControlFile>(
      new ControlFile(std::move(file), data_of(*newest), newest->sequence));
}

Status ControlFile::publish(const ControlData& data) {
  auto slot = std::make_unique<ControlSlot>();
  const uint64_t sequence = sequence_ + 1;
  fill_slot(data, sequence, slot.get());
  // On failure the next attempt writes the same slot again: the other one stays good.
  STRATA_RETURN_IF_ERROR(file_->write_at((sequence % 2) * kSlotBytes, slot.get(), kSlotBytes));
  STRATA_RETURN_IF_ERROR(file_->sync_data());
  sequence_ = sequence;
  data_ = data;
  return ok_status();
}

}  // namespace strata
