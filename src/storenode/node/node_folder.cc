#include "storenode/node/node_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/crc32c.h"
#include "cluster/keys.h"

namespace strata::storenode {
namespace {

constexpr std::string_view kFirstLine = "strata storage node";
constexpr uint32_t kStampFormat = 1;
constexpr size_t kStampBytesMax = 4096;
constexpr std::string_view kStampName = "node.stamp";
constexpr std::string_view kNewName = "node.stamp.new";  // of a start that did not come to its end
constexpr std::string_view kLockName = "lock";

std::string hex(uint64_t value, int digits) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (int i = digits - 1; i >= 0; --i) text += kDigits[(value >> (4 * i)) & 15];
  return text;
}

template <class Number>
bool parse(std::string_view text, int base, Number* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out, base);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

// Takes "<key> <value>\n" from the front of the text.
bool take_line(std::string_view* text, std::string_view key, std::string_view* value) {
  const size_t end = text->find('\n');
  if (end == std::string_view::npos) return false;
  const std::string_view line = text->substr(0, end);
  if (!line.starts_with(key) || line.size() <= key.size() || line[key.size()] != ' ') return false;
  *value = line.substr(key.size() + 1);
  text->remove_prefix(end + 1);
  return true;
}

template <class Number>
bool take_number(std::string_view* text, std::string_view key, int base, Number* out) {
  std::string_view value;
  return take_line(text, key, &value) && parse(value, base, out);
}

bool take_name(std::string_view* text, std::string_view key, std::string* out) {
  std::string_view value;
  if (!take_line(text, key, &value) || !cluster::is_name(value)) return false;
  *out = std::string(value);
  return true;
}

// The text between the first line and the checksum's, if both are right.
std::optional<std::string_view> checked(std::string_view text) {
  if (!text.starts_with(kFirstLine) || text.substr(kFirstLine.size(), 1) != "\n" ||
      text.back() != '\n')
    return std::nullopt;
  const size_t last = text.rfind('\n', text.size() - 2) + 1;
  std::string_view tail = text.substr(last);
  uint32_t crc = 0;
  if (last <= kFirstLine.size() || !take_number(&tail, "crc32c", 16, &crc)) return std::nullopt;
  if (crc != crc32c(text.data(), last)) return std::nullopt;
  return text.substr(kFirstLine.size() + 1, last - kFirstLine.size() - 1);
}

}  // namespace

std::string hex64(uint64_t value) { return hex(value, 16); }

std::string encode(const NodeStamp& stamp) {
  std::string text(kFirstLine);
  const auto line = [&](const char* key, const std::string& value) {
    text.append("\n").append(key).append(" ").append(value);
  };
  line("format", std::to_string(kStampFormat));
  line("name", stamp.name);
  line("identity", hex64(stamp.identity));
  line("database", hex64(stamp.database_id));
  line("profile", stamp.profile);
  text.append("\n");
  const uint32_t crc = crc32c(text.data(), text.size());
  return text.append("crc32c ").append(hex(crc, 8)).append("\n");
}

StatusOr<NodeStamp> decode_stamp(std::string_view text, const std::string& path) {
  const Status damaged =
      error_corruption("the stamp " + path +
                       " is damaged; it says which node and database the folder belongs to: put a "
                       "copy of it back, or start with an empty folder and let the node fetch its "
                       "data from its peers");
  const std::optional<std::string_view> body = checked(text);
  if (!body.has_value()) return damaged;
  std::string_view rest = *body;
  uint32_t format = 0;
  if (!take_number(&rest, "format", 10, &format) || format == 0) return damaged;
  if (format > kStampFormat)
    return error_unsupported("the stamp " + path + " has format " + std::to_string(format) +
                             "; this program knows " + std::to_string(kStampFormat) +
                             "; to do: use the newer program that made it");
  NodeStamp stamp;
  if (!take_name(&rest, "name", &stamp.name) ||
      !take_number(&rest, "identity", 16, &stamp.identity) ||
      !take_number(&rest, "database", 16, &stamp.database_id) ||
      !take_name(&rest, "profile", &stamp.profile) || !rest.empty() || stamp.identity == 0 ||
      stamp.database_id == 0)
    return damaged;
  return stamp;
}

// --- the folder ---

NodeFolder::NodeFolder(FileSystem* files, std::string directory)
    : files_(files), directory_(std::move(directory)) {}

NodeFolder::~NodeFolder() {
  if (lock_fd_ >= 0) ::close(lock_fd_);
}

std::string NodeFolder::path(std::string_view name) const {
  return directory_ + "/" + std::string(name);
}

Status NodeFolder::refused(const std::string& why) const {
  return error_wrong_database("the data folder " + directory_ + " " + why);
}

StatusOr<std::unique_ptr<NodeFolder>> NodeFolder::open(FileSystem* files, std::string directory) {
  auto folder = std::unique_ptr<NodeFolder>(new NodeFolder(files, std::move(directory)));
  STRATA_RETURN_IF_ERROR(files->make_directory(folder->directory_));
  STRATA_RETURN_IF_ERROR(folder->check_contents());
  STRATA_RETURN_IF_ERROR(folder->lock());
  STRATA_RETURN_IF_ERROR(folder->read());
  return folder;
}

// Before the lock file is made: a folder of somebody else's stays as it is.
Status NodeFolder::check_contents() {
  STRATA_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_->list(directory_));
  if (std::find(names.begin(), names.end(), kStampName) != names.end()) return ok_status();
  for (const std::string& name : names) {
    if (name != kLockName && name != kNewName)
      return refused("is not empty (it holds " + name + ") and has no " + std::string(kStampName) +
                     ", so it is no storage node's; choose another folder");
  }
  return ok_status();
}

Status NodeFolder::lock() {
  const std::string lock_path = path(kLockName);
  lock_fd_ = ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0660);
  if (lock_fd_ < 0) return error_io_error("cannot open " + lock_path + ": " + std::strerror(errno));
  if (::flock(lock_fd_, LOCK_EX | LOCK_NB) != 0)
    return error_in_use("the data folder " + directory_ +
                        " is in use by another process (lock on " + lock_path + ")");
  return ok_status();
}

Status NodeFolder::read() {
  auto file = files_->open(path(kStampName), {});
  if (is_not_found(file.status())) return ok_status();
  STRATA_RETURN_IF_ERROR(file.status());
  std::string text(kStampBytesMax + 1, '\0');
  size_t got = 0;
  STRATA_RETURN_IF_ERROR((*file)->read_at(0, text.data(), text.size(), &got));
  text.resize(got);
  STRATA_ASSIGN_OR_RETURN(stamp_, decode_stamp(text, path(kStampName)));
  return ok_status();
}

Status NodeFolder::check(std::string_view name, std::string_view profile) const {
  if (!stamp_.has_value()) return ok_status();
  if (stamp_->name != name)
    return refused("belongs to storage node " + stamp_->name + ", not to " + std::string(name) +
                   "; to do: start it with that name, or with another folder");
  if (stamp_->profile != profile)
    return refused("was made with profile " + stamp_->profile + ", not with " +
                   std::string(profile) +
                   "; a profile is for the life of a database; to do: start it " +
                   "with that one, or with another folder");
  return ok_status();
}

Status NodeFolder::check_database(uint64_t database_id) const {
  if (!stamp_.has_value() || stamp_->database_id == database_id) return ok_status();
  return refused("holds data of database " + hex64(stamp_->database_id) +
                 ", and the registry names database " + hex64(database_id) +
                 "; to do: start it with its own cluster's registry, or with another folder");
}

Status NodeFolder::write(const NodeStamp& stamp) {
  STRATA_ASSERT(!stamp_.has_value());
  const std::string text = encode(stamp);
  {
    STRATA_ASSIGN_OR_RETURN(const auto file, files_->open(path(kNewName), {.create = true}));
    STRATA_RETURN_IF_ERROR(file->truncate(0));
    STRATA_RETURN_IF_ERROR(file->write_at(0, text.data(), text.size()));
    STRATA_RETURN_IF_ERROR(file->sync_data());
  }
  STRATA_RETURN_IF_ERROR(files_->rename(path(kNewName), path(kStampName)));
  STRATA_RETURN_IF_ERROR(files_->sync_directory(directory_));
  stamp_ = stamp;
  return ok_status();
}

}  // namespace strata::storenode
