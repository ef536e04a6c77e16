#include "daemon/data_folder.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/assert.h"
#include "base/crc32c.h"

namespace strata::daemon {
namespace {

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

bool take_name(const FolderKind& kind, std::string_view* text, std::string_view key,
               std::string* out) {
  std::string_view value;
  if (!take_line(text, key, &value) || !kind.is_name(value)) return false;
  *out = std::string(value);
  return true;
}

bool take_database(const FolderKind& kind, std::string_view* text, FolderStamp* stamp) {
  return take_number(text, "database", 16, &stamp->database_id) && stamp->database_id != 0 &&
         take_name(kind, text, "profile", &stamp->profile);
}

constexpr std::string_view kFirstWord = "strata ";

// What is between the brackets of a stamp, if those are right.
struct Checked {
  std::string_view what;  // kind of folder
  std::string_view body;  // between the first line and the checksum's
};

std::optional<Checked> checked(std::string_view text) {
  if (!text.starts_with(kFirstWord) || text.back() != '\n') return std::nullopt;
  const size_t begin = text.find('\n') + 1;
  const size_t last = text.rfind('\n', text.size() - 2) + 1;
  std::string_view tail = text.substr(last);
  uint32_t crc = 0;
  if (last < begin || !take_number(&tail, "crc32c", 16, &crc)) return std::nullopt;
  if (crc != crc32c(text.data(), last)) return std::nullopt;
  return Checked{text.substr(kFirstWord.size(), begin - 1 - kFirstWord.size()),
                 text.substr(begin, last - begin)};
}

}  // namespace

std::string hex64(uint64_t value) { return hex(value, 16); }

std::string encode(const FolderKind& kind, const FolderStamp& stamp) {
  std::string text = std::string(kFirstWord).append(kind.what).append("\n");
  const auto line = [&](const char* key, const std::string& value) {
    text.append(key).append(" ").append(value).append("\n");
  };
  line("format", std::to_string(kind.format));
  line("name", stamp.name);
  line("identity", hex64(stamp.identity));
  if (kind.of_one_database) {
    line("database", hex64(stamp.database_id));
    line("profile", stamp.profile);
  }
  const uint32_t crc = crc32c(text.data(), text.size());
  return text.append("crc32c ").append(hex(crc, 8)).append("\n");
}

StatusOr<FolderStamp> decode_stamp(const FolderKind& kind, std::string_view text,
                                   const std::string& path) {
  const Status damaged = error_corruption(
      std::string("the stamp ")
          .append(path)
          .append(" is damaged; it says which node and database the folder belongs to: ")
          .append(kind.remedy_of_damage));
  const std::optional<Checked> found = checked(text);
  if (!found.has_value()) return damaged;
  if (found->what != kind.what)
    return error_wrong_database("the stamp " + path + " is a " + std::string(found->what) +
                                "'s, not a " + std::string(kind.what) +
                                "'s; to do: start that, or choose another folder");
  std::string_view rest = found->body;
  uint32_t format = 0;
  if (!take_number(&rest, "format", 10, &format) || format == 0) return damaged;
  if (format > kind.format)
    return error_unsupported("the stamp " + path + " has format " + std::to_string(format) +
                             "; this program knows " + std::to_string(kind.format) +
                             "; to do: use the newer program that made it");
  FolderStamp stamp;
  if (!take_name(kind, &rest, "name", &stamp.name) ||
      !take_number(&rest, "identity", 16, &stamp.identity) || stamp.identity == 0 ||
      (kind.of_one_database && !take_database(kind, &rest, &stamp)) || !rest.empty())
    return damaged;
  return stamp;
}

// --- the folder ---

DataFolder::DataFolder(FileSystem* files, const FolderKind& kind, std::string directory)
    : files_(files), kind_(kind), directory_(std::move(directory)) {}

std::string DataFolder::path(std::string_view name) const {
  return directory_ + "/" + std::string(name);
}

Status DataFolder::refused(const std::string& why) const {
  return error_wrong_database("the data folder " + directory_ + " " + why);
}

StatusOr<std::unique_ptr<DataFolder>> DataFolder::open(FileSystem* files, const FolderKind& kind,
                                                       std::string directory) {
  auto folder = std::unique_ptr<DataFolder>(new DataFolder(files, kind, std::move(directory)));
  STRATA_RETURN_IF_ERROR(files->make_directory(folder->directory_));
  STRATA_RETURN_IF_ERROR(folder->check_contents());
  STRATA_RETURN_IF_ERROR(folder->lock());
  STRATA_RETURN_IF_ERROR(folder->read());
  return folder;
}

// Before the lock file is made: a folder of somebody else's stays as it is.
Status DataFolder::check_contents() {
  STRATA_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_->list(directory_));
  if (std::find(names.begin(), names.end(), kStampName) != names.end()) return ok_status();
  for (const std::string& name : names) {
    if (name != kLockName && name != kNewName)
      return refused("is not empty (it holds " + name + ") and has no " + std::string(kStampName) +
                     ", so it is no " + std::string(kind_.what) + "'s; choose another folder");
  }
  return ok_status();
}

Status DataFolder::lock() {
  const std::string lock_path = path(kLockName);
  auto locked = files_->lock_file(lock_path);
  if (is_in_use(locked.status()))
    return error_in_use("the data folder " + directory_ +
                        " is in use by another process (lock on " + lock_path + ")");
  STRATA_RETURN_IF_ERROR(locked.status());
  lock_ = *std::move(locked);
  return ok_status();
}

Status DataFolder::read() {
  auto file = files_->open(path(kStampName), {});
  if (is_not_found(file.status())) return ok_status();
  STRATA_RETURN_IF_ERROR(file.status());
  std::string text(kStampBytesMax + 1, '\0');
  size_t got = 0;
  STRATA_RETURN_IF_ERROR((*file)->read_at(0, text.data(), text.size(), &got));
  text.resize(got);
  STRATA_ASSIGN_OR_RETURN(stamp_, decode_stamp(kind_, text, path(kStampName)));
  return ok_status();
}

Status DataFolder::check(std::string_view name, std::string_view profile) const {
  if (!stamp_.has_value()) return ok_status();
  if (stamp_->name != name)
    return refused("belongs to " + std::string(kind_.what) + " " + stamp_->name + ", not to " +
                   std::string(name) + "; to do: start it with that name, or with another folder");
  if (stamp_->profile != profile)
    return refused("was made with profile " + stamp_->profile + ", not with " +
                   std::string(profile) +
                   "; a profile is for the life of a database; to do: start it " +
                   "with that one, or with another folder");
  return ok_status();
}

Status DataFolder::check_database(uint64_t database_id) const {
  if (!stamp_.has_value() || stamp_->database_id == database_id) return ok_status();
  return refused("holds data of database " + hex64(stamp_->database_id) +
                 ", and the registry names database " + hex64(database_id) +
                 "; to do: start it with its own cluster's registry, or with another folder");
}

Status DataFolder::write(const FolderStamp& stamp) {
  STRATA_ASSERT(!stamp_.has_value());
  const std::string text = encode(kind_, stamp);
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

}  // namespace strata::daemon
