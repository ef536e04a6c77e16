#include "mariadb/coordinator.h"

#include <unistd.h>

#include <fstream>
#include <random>
#include <thread>
#include <utility>

#include "base/latch.h"
#include "base/thread_name.h"
#include "io/file_system.h"
#include "mariadb/cluster.h"
#include "mariadb/connection.h"
#include "mariadb/error_map.h"

namespace strata::glue {
namespace {

constexpr std::string_view kIdentityExtension = ".strata-id";
constexpr LogIdentity kTcLog{};
constexpr uint64_t kRetryUs = 1'000'000;
// Of a binary log's first event, after 4 bytes of magic: time 4 | type 1 | server 4 | length 4 |
// position 4 | flags 2. The flag stands while a server writes the file.
constexpr size_t kBinlogFlagsAt = 4 + 17;
constexpr size_t kBinlogStartBytes = kBinlogFlagsAt + 2;
constexpr uint8_t kBinlogInUse = 1;

// Of this server, from start_coordination() on.
LogIdentity identity = kTcLog;
bool server_recovers = false;  // the log with `identity`, and will ask for what it decides

// --- the binary log ---

std::string identity_path() {
  return std::string(log_bin_basename) + std::string(kIdentityExtension);
}

std::string to_hex(const LogIdentity& id) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (const uint8_t byte : id) {
    out += kHex[byte >> 4];
    out += kHex[byte & 15];
  }
  return out;
}

bool from_hex(std::string_view text, LogIdentity* id) {
  if (text.size() != 2 * id->size()) return false;
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  for (size_t i = 0; i < id->size(); ++i) {
    const int high = digit(text[2 * i]);
    const int low = digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    (*id)[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return *id != kTcLog;
}

Status make_identity(FileSystem* disk, const std::string& path) {
  std::random_device random;
  for (size_t i = 0; i < identity.size(); i += 4) {
    const uint32_t word = random();
    std::memcpy(identity.data() + i, &word, 4);
  }
  const std::string text = to_hex(identity) + "\n";
  const std::string fresh = path + ".new";
  {
    STRATA_ASSIGN_OR_RETURN(const auto file, disk->open(fresh, {.create = true}));
    STRATA_RETURN_IF_ERROR(file->truncate(0));
    STRATA_RETURN_IF_ERROR(file->write_at(0, text.data(), text.size()));
    STRATA_RETURN_IF_ERROR(file->sync_data());
  }
  STRATA_RETURN_IF_ERROR(disk->rename(fresh, path));
  const size_t slash = path.rfind('/');
  return disk->sync_directory(slash == std::string::npos ? "." : path.substr(0, slash + 1));
}

Status read_identity() {
  const std::unique_ptr<FileSystem> disk = make_posix_file_system();
  const std::string path = identity_path();
  const auto file = disk->open(path, {.read_only = true});
  if (is_not_found(file.status())) return make_identity(disk.get(), path);
  STRATA_RETURN_IF_ERROR(file.status());
  char text[2 * sizeof(LogIdentity)];
  size_t got = 0;
  STRATA_RETURN_IF_ERROR((*file)->read_at(0, text, sizeof text, &got));
  if (got == sizeof text && from_hex({text, got}, &identity)) return ok_status();
  return error_corruption("'" + path +
                          "' does not hold the identity of this server's binary log; if it is "
                          "damaged and the server was shut down cleanly, delete it");
}

// Whether the server will recover its binary log: the last file of it was not closed.
bool binary_log_is_open() {
  std::ifstream index(log_bin_index);
  std::string name;
  for (std::string line; std::getline(index, line);)
    if (!line.empty()) name = line;
  if (name.empty()) return false;
  std::ifstream last(name, std::ios::binary);
  char start[kBinlogStartBytes];
  if (!last.read(start, sizeof start)) return false;
  return (static_cast<uint8_t>(start[kBinlogFlagsAt]) & kBinlogInUse) != 0;
}

// --- stored xids ---

struct StoredXid {
  XID xid;
  bool made_by_server = false;
  bool has_identity = false;  // false: a user's, or prepared by a build that stored none
  LogIdentity identity = kTcLog;
};

bool parse(Bytes bytes, StoredXid* out) {
  ByteReader reader(bytes);
  XID& xid = out->xid;
  xid.formatID = static_cast<long>(static_cast<int64_t>(reader.u64()));
  xid.gtrid_length = reader.u8();
  xid.bqual_length = reader.u8();
  const auto length = static_cast<size_t>(xid.gtrid_length + xid.bqual_length);
  if (!reader.ok() || length > XIDDATASIZE || reader.remaining() < length) return false;
  std::memcpy(xid.data, reader.bytes(length).data(), length);
  out->made_by_server = xid.get_my_xid() != 0;
  if (reader.remaining() == 0) return true;
  out->has_identity = out->made_by_server && reader.remaining() == sizeof(LogIdentity);
  if (!out->has_identity) return false;
  std::memcpy(out->identity.data(), reader.bytes(sizeof(LogIdentity)).data(), sizeof(LogIdentity));
  return true;
}

bool in_cluster() { return cluster_identity() != 0; }

// BL2
bool server_decides(const StoredXid& stored) {
  if (!stored.made_by_server) return true;  // a user decides
  if (!stored.has_identity) return !in_cluster() || server_recovers;
  if (tc_heuristic_recover != 0 && !in_cluster()) return true;  // the operator does
  return server_recovers && stored.identity == identity;
}

// --- the thread ---

class Coordination {
 public:
  explicit Coordination(std::vector<std::string> to_roll_back)
      : to_roll_back_(std::move(to_roll_back)), thread_([this] { run(); }) {}
  ~Coordination() {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  Coordination(const Coordination&) = delete;
  Coordination& operator=(const Coordination&) = delete;

  void request(void* cookie) {
    {
      const MutexLock lock(mutex_);
      requests_.push_back(cookie);
    }
    wake_.notify_all();
  }

 private:
  void run() {
    name_this_thread("coordination");
    my_thread_init();
    (void)guarded([this] {
      serve();
      return 0;
    });
    my_thread_end();
  }

  void serve() {
    MutexLock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this]() STRATA_REQUIRES(mutex_) {
        return stopping_ || !requests_.empty() || !to_roll_back_.empty();
      });
      const size_t asked = requests_.size();
      lock.unlock();
      roll_back();
      const bool durable = asked == 0 || persist();
      lock.lock();
      if (durable) {
        const std::vector<void*> done(requests_.begin(), requests_.begin() + asked);
        requests_.erase(requests_.begin(), requests_.begin() + asked);
        lock.unlock();
        for (void* const cookie : done) commit_checkpoint_notify_ha(cookie);
        lock.lock();
      }
      if (stopping_ && (requests_.empty() || !durable)) return;
      if (!durable || !to_roll_back_.empty())
        wake_.wait_for_us(lock, kRetryUs, [this]() STRATA_REQUIRES(mutex_) { return stopping_; });
    }
  }

  bool persist() {
    const Status status = kernel->persist_log();
    if (!status.ok() && !reported_)
      sql_print_error(
          "STRATA: the log cannot be made durable (%s): the checkpoint of the binary log waits, "
          "and no file of it that recovery may need is given up",
          std::string(status.message()).c_str());
    reported_ = !status.ok();
    return status.ok();
  }

  void roll_back() {
    std::vector<std::string> left;
    for (const std::string& xid : to_roll_back_) {
      const Status status = kernel->rollback_by_xid(xid);
      if (status.ok() || is_not_found(status)) continue;
      if (!rollback_reported_)
        sql_print_error(
            "STRATA: a transaction that was prepared elsewhere could not be rolled back: %s; it "
            "will be tried again",
            std::string(status.message()).c_str());
      rollback_reported_ = true;
      left.push_back(xid);
    }
    to_roll_back_ = std::move(left);
  }

  Mutex mutex_{LatchRank::kServer};
  CondVar wake_;
  bool stopping_ STRATA_GUARDED_BY(mutex_) = false;
  std::vector<void*> requests_ STRATA_GUARDED_BY(mutex_);  // oldest first
  // Of the thread alone.
  std::vector<std::string> to_roll_back_;
  bool reported_ = false;
  bool rollback_reported_ = false;
  std::thread thread_;
};

std::unique_ptr<Coordination> coordination;

}  // namespace

Status start_coordination() {
  identity = kTcLog;
  server_recovers = false;
  if (opt_bin_log) {
    STRATA_RETURN_IF_ERROR(read_identity());
    // A server that runs already has done its recovery.
    server_recovers = !mysqld_server_started && binary_log_is_open();
  }
  std::vector<std::string> to_roll_back;
  size_t undecided = 0;
  for (const engine::PreparedTransaction& prepared : kernel->prepared_transactions()) {
    StoredXid stored;
    if (!parse(prepared.xid, &stored)) {
      sql_print_error("STRATA: a prepared transaction has an unreadable xid; it stays prepared");
    } else if (!server_decides(stored)) {
      // tc.log: commit() has waited for its own group, and this server's recovery does not look
      // into the file but rolls back what is prepared.
      if (in_cluster() || stored.identity == kTcLog) {
        to_roll_back.push_back(prepared.xid);
      } else {
        ++undecided;
      }
    }
  }
  if (undecided != 0) {
    return error_fenced(
        std::to_string(undecided) +
        " transaction(s) are prepared, and whether they are committed stands in the binary log "
        "that the server wrote before it crashed. That binary log is not here (log_bin is off or "
        "names another one, its files are gone, or it has been recovered without this engine). "
        "Start with that binary log and its file '*" +
        std::string(kIdentityExtension) +
        "'; if it is lost, once with --tc-heuristic-recover=COMMIT or ROLLBACK, which decides all "
        "of them alike");
  }
  if (!to_roll_back.empty())
    sql_print_information(
        "STRATA: %zu transaction(s) that were prepared and not committed are rolled back: the log "
        "that another server, or this one, would have decided them by is not here, and none of "
        "them was acknowledged",
        to_roll_back.size());
  coordination = std::make_unique<Coordination>(std::move(to_roll_back));
  return ok_status();
}

void end_rather_than_recover_without_engine() {
  if (!opt_bin_log || mysqld_server_started || !binary_log_is_open()) return;
  sql_print_error(
      "STRATA: the engine cannot start, and the binary log has to be recovered: the server would "
      "do "
      "so without the engine, and what the engine has prepared could no longer be decided by it. "
      "The server ends here. Mend what keeps the engine from starting (see above), or start "
      "without "
      "the plugin");
  ::_exit(1);
}

void stop_coordination() { coordination.reset(); }

std::string user_xid_to_store(const XID& xid) {
  std::string out;
  append_u64(&out, static_cast<uint64_t>(static_cast<int64_t>(xid.formatID)));
  append_u8(&out, static_cast<uint8_t>(xid.gtrid_length));
  append_u8(&out, static_cast<uint8_t>(xid.bqual_length));
  out.append(xid.data, static_cast<size_t>(xid.gtrid_length + xid.bqual_length));
  return out;
}

std::string server_xid_to_store(const XID& xid, bool in_binary_log) {
  const LogIdentity& decides = in_binary_log ? identity : kTcLog;
  std::string out = user_xid_to_store(xid);
  out.append(reinterpret_cast<const char*>(decides.data()), decides.size());
  return out;
}

bool xid_to_recover(Bytes stored, XID* xid) {
  StoredXid parsed;
  if (!parse(stored, &parsed) || !server_decides(parsed)) return false;
  *xid = parsed.xid;
  return true;
}

std::string stored_xid_of(const XID& xid) {
  const std::string plain = user_xid_to_store(xid);
  for (const engine::PreparedTransaction& prepared : kernel->prepared_transactions()) {
    StoredXid parsed;
    if (prepared.xid.starts_with(plain) && parse(prepared.xid, &parsed) && server_decides(parsed) &&
        user_xid_to_store(parsed.xid) == plain)
      return prepared.xid;
  }
  return plain;
}

void request_checkpoint(void* cookie) { coordination->request(cookie); }

void pre_shutdown() {
  if (!opt_bin_log || kernel == nullptr) return;
  (void)guarded([] {
    const Status status = kernel->persist_log();
    if (status.ok()) return 0;
    sql_print_error(
        "STRATA: the log cannot be made durable (%s). The server ends here as by a crash, so that "
        "its binary log is recovered at the next start",
        std::string(status.message()).c_str());
    ::_exit(1);
  });
}

}  // namespace strata::glue
