#include "clients/compute/node_identity.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <optional>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/ids.h"
#include "io/file_system.h"
#include "transport/secret.h"

namespace strata::clients {

namespace {

// "strata-node 1 <identity, 16 hex digits> <crc32c of what is before it, 8 hex digits>\n"
constexpr size_t kIdentityEnd = 14 + 16;
constexpr size_t kFileBytes = kIdentityEnd + 1 + 8 + 1;
using Line = std::array<char, kFileBytes + 1>;

Line line_of(uint64_t identity) {
  Line line{};
  std::snprintf(line.data(), line.size(), "strata-node 1 %016" PRIx64, identity);
  std::snprintf(line.data() + kIdentityEnd, line.size() - kIdentityEnd, " %08" PRIx32 "\n",
                crc32c(line.data(), kIdentityEnd));
  return line;
}

Status damaged(const std::string& path) {
  return error_corruption(
      path +
      " is damaged. It tells this node from others and holds nothing else: with "
      "the node stopped it may be removed; a new one is made at the next start");
}

StatusOr<uint64_t> read_identity(File* file) {
  Line line{};
  size_t got = 0;
  STRATA_RETURN_IF_ERROR(file->read_at(0, line.data(), line.size(), &got));
  uint64_t identity = 0;
  if (got != kFileBytes || std::sscanf(line.data(), "strata-node 1 %16" SCNx64, &identity) != 1 ||
      std::memcmp(line.data(), line_of(identity).data(), kFileBytes) != 0)
    return damaged(file->path());
  return identity;
}

constexpr uint64_t kLockLookUs = 50'000;

Status cannot(const char* what, const std::string& path) {
  return error_io_error(std::string("cannot ") + what + " " + path + ": " + std::strerror(errno));
}

Status in_use(const std::string& directory, const std::string& path) {
  return error_in_use("the data folder " + directory + " is in use by another process (lock on " +
                      path + ")");
}

// Which start of the operating system this is; nothing: it does not say.
std::string boot_id() {
  std::array<char, 64> id{};
  const int file = ::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (file < 0) return "";
  const ssize_t got = ::read(file, id.data(), id.size());
  ::close(file);
  return got > 0 ? std::string(id.data(), static_cast<size_t>(got)) : "";
}

uint64_t random_number() {
  uint64_t number = 0;
  while (number == 0)
    transport::system_entropy()->fill(reinterpret_cast<char*>(&number), sizeof number);
  return number;
}

// ID2
uint64_t place_of(uint64_t identity, const struct stat& file) {
  const std::string boot = boot_id();
  if (boot.empty()) return random_number();  // like no other place
  uint64_t place = mix64(identity);
  for (const char c : boot) place = mix64(place ^ static_cast<unsigned char>(c));
  return mix64(mix64(place ^ file.st_dev) ^ file.st_ino);
}

struct Locked {
  int descriptor;
  struct stat file;
};

// Whether what was opened is still what lies under that name.
bool is_there(const std::string& path, const struct stat& opened) {
  struct stat now {};
  return ::stat(path.c_str(), &now) == 0 && now.st_ino == opened.st_ino &&
         now.st_dev == opened.st_dev;
}

// Nothing: another process has it.
StatusOr<std::optional<Locked>> lock(const std::string& path) {
  Locked locked{::open(path.c_str(), O_RDONLY | O_CLOEXEC), {}};
  if (locked.descriptor < 0) return cannot("open", path);
  if (::flock(locked.descriptor, LOCK_EX | LOCK_NB) == 0 &&
      ::fstat(locked.descriptor, &locked.file) == 0 && is_there(path, locked.file))
    return std::optional(locked);
  ::close(locked.descriptor);
  return std::optional<Locked>();
}

}  // namespace

StatusOr<std::unique_ptr<HeldIdentity>> HeldIdentity::of(const std::string& directory,
                                                         uint64_t patience_us) {
  const std::unique_ptr<FileSystem> files = make_posix_file_system();
  const std::string path = directory + "/node-identity";
  const uint64_t until_us = monotonic_us() + patience_us;
  for (;;) {
    STRATA_ASSIGN_OR_RETURN(const uint64_t identity, node_identity(files.get(), directory));
    STRATA_ASSIGN_OR_RETURN(const std::optional<Locked> locked, lock(path));
    if (locked.has_value())
      return std::unique_ptr<HeldIdentity>(
          new HeldIdentity(locked->descriptor, identity, place_of(identity, locked->file)));
    if (monotonic_us() >= until_us) return in_use(directory, path);
    ::usleep(kLockLookUs);
  }
}

StatusOr<std::unique_ptr<HeldIdentity>> HeldIdentity::left_behind(const std::string& directory) {
  const std::string path = directory + "/node-identity";
  if (::access(path.c_str(), F_OK) != 0) return error_not_found(path + " is not there");
  STRATA_ASSIGN_OR_RETURN(const std::optional<Locked> locked, lock(path));
  if (!locked.has_value()) return in_use(directory, path);
  auto held = std::unique_ptr<HeldIdentity>(new HeldIdentity(locked->descriptor, 0, 0));
  const std::unique_ptr<FileSystem> files = make_posix_file_system();
  STRATA_ASSIGN_OR_RETURN(auto file, files->open(path, {}));
  STRATA_ASSIGN_OR_RETURN(held->identity_, read_identity(file.get()));
  held->place_ = place_of(held->identity_, locked->file);
  return held;
}

std::string HeldIdentity::suffix() const {
  char hex[20];
  std::snprintf(hex, sizeof hex, ".%016" PRIx64, place_);
  return hex;
}

HeldIdentity::~HeldIdentity() { ::close(descriptor_); }

StatusOr<uint64_t> node_identity(FileSystem* files, const std::string& directory) {
  STRATA_RETURN_IF_ERROR(files->make_directory(directory));
  const std::string path = directory + "/node-identity";
  auto there = files->open(path, {});
  if (there.ok()) return read_identity(there->get());
  if (!is_not_found(there.status())) return there.status();
  const uint64_t identity = random_number();
  const std::string written = path + ".new";
  STRATA_RETURN_IF_ERROR(files->remove(written));
  STRATA_ASSIGN_OR_RETURN(auto file, files->open(written, {.create = true, .exclusive = true}));
  STRATA_RETURN_IF_ERROR(file->write_at(0, line_of(identity).data(), kFileBytes));
  STRATA_RETURN_IF_ERROR(file->sync_data());
  STRATA_RETURN_IF_ERROR(files->rename(written, path));
  STRATA_RETURN_IF_ERROR(files->sync_directory(directory));
  return identity;
}

}  // namespace strata::clients
