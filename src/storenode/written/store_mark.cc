#include "storenode/written/store_mark.h"

#include "base/assert.h"
#include "base/crc32c.h"

namespace strata::storenode {
namespace {

constexpr uint64_t kMagic = 0x65726f7473727473;  // "strstore"
constexpr size_t kMarkBytes = 28;

std::string path_in(const std::string& directory) { return directory + "/store"; }

}  // namespace

std::string encode(const StoreMark& mark) {
  std::string out;
  append_u64(&out, kMagic);
  append_u64(&out, mark.number);
  append_u64(&out, mark.epoch.value);
  append_u32(&out, crc32c(out.data(), out.size()));
  STRATA_ASSERT(out.size() == kMarkBytes);
  return out;
}

StatusOr<StoreMark> decode_store_mark(Bytes bytes, const std::string& path) {
  ByteReader in(bytes);
  const bool known = in.u64() == kMagic;
  StoreMark mark;
  mark.number = in.u64();
  mark.epoch = Epoch{in.u64()};
  const uint32_t crc = in.u32();
  if (bytes.size() != kMarkBytes || !known || crc != crc32c(bytes.data(), kMarkBytes - 4) ||
      mark.number == 0)
    return error_corruption(path +
                            " is damaged; it says which store of pages this is. Remove the "
                            "folder it is in: the pages are then copied from other nodes");
  return mark;
}

StatusOr<StoreMark> read_store_mark(FileSystem* files, const std::string& directory) {
  const std::string path = path_in(directory);
  STRATA_ASSIGN_OR_RETURN(const auto file, files->open(path, OpenOptions{.read_only = true}));
  char bytes[kMarkBytes + 1];
  size_t got = 0;
  STRATA_RETURN_IF_ERROR(file->read_at(0, bytes, sizeof bytes, &got));
  return decode_store_mark(Bytes(bytes, got), path);
}

// SK1
Status write_store_mark(FileSystem* files, const std::string& directory, const StoreMark& mark) {
  STRATA_ASSERT(mark.number != 0);
  const std::string path = path_in(directory);
  const std::string temporary = path + ".tmp";
  {
    STRATA_ASSIGN_OR_RETURN(const auto file, files->open(temporary, OpenOptions{.create = true}));
    const std::string bytes = encode(mark);
    STRATA_RETURN_IF_ERROR(file->truncate(0));
    STRATA_RETURN_IF_ERROR(file->write_at(0, bytes.data(), bytes.size()));
    STRATA_RETURN_IF_ERROR(file->sync_data());
  }
  STRATA_RETURN_IF_ERROR(files->rename(temporary, path));
  return files->sync_directory(directory);
}

}  // namespace strata::storenode
