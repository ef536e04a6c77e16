// Two-phase commit and XA. An xid is kept in the kernel as format 8 | gtrid length 1 | bqual length
// 1 | data.
#include "mariadb/connection.h"
#include "mariadb/error_map.h"

namespace strata::glue {
namespace {

std::string encode_xid(const XID& xid) {
  std::string out;
  append_u64(&out, static_cast<uint64_t>(static_cast<int64_t>(xid.formatID)));
  append_u8(&out, static_cast<uint8_t>(xid.gtrid_length));
  append_u8(&out, static_cast<uint8_t>(xid.bqual_length));
  out.append(xid.data, static_cast<size_t>(xid.gtrid_length + xid.bqual_length));
  return out;
}

bool decode_xid(Bytes bytes, XID* xid) {
  ByteReader reader(bytes);
  xid->formatID = static_cast<long>(static_cast<int64_t>(reader.u64()));
  xid->gtrid_length = reader.u8();
  xid->bqual_length = reader.u8();
  const size_t length = reader.remaining();
  if (!reader.ok() || length > XIDDATASIZE ||
      length != static_cast<size_t>(xid->gtrid_length + xid->bqual_length))
    return false;
  std::memcpy(xid->data, reader.bytes(length).data(), length);
  return true;
}

// The error codes of the XA interface (X/Open), not of handlers.
constexpr int kXaOk = 0;
constexpr int kXaResourceManagerError = -3;
constexpr int kXaUnknownXid = -4;
constexpr int kXaUnavailable = -7;

int xa_error(const Status& status) {
  if (status.ok()) return kXaOk;
  if (status.code() == StatusCode::kNotFound) return kXaUnknownXid;
  (void)handler_error(status, nullptr);
  return kXaUnavailable;
}

// recover() is called again and again until it returns less than it could.
size_t recovered_so_far = 0;

}  // namespace

int prepare(handlerton*, THD* thd, bool all) {
  return guarded([&] {
    Connection* const connection = existing_connection(thd);
    if (connection == nullptr) return 0;
    engine::Session* const session = connection->session.get();
    if (!session->in_transaction()) return 0;
    if (!ends_transaction(thd, all)) {
      connection->statement = session->savepoint();
      return 0;
    }
    const bool user_xa = thd->transaction->xid_state.is_explicit_XA();
    if (!session->has_changes()) {
      connection->xa_prepared = user_xa;
      return 0;
    }
    MYSQL_XID server_xid;
    thd_get_xid(thd, &server_xid);
    const std::string xid = encode_xid(*reinterpret_cast<const XID*>(&server_xid));
    Status status = session->prepare(xid);
    // A user's XA COMMIT comes who knows when and does both halves at once.
    if (status.ok() && !user_xa) status = session->reserve_commit();
    if (!status.ok()) return handler_error(status, thd);
    connection->prepared = !user_xa;
    connection->xa_prepared = user_xa;
    return 0;
  });
}

int recover(handlerton*, XID* list, uint length) {
  int found = 0;
  (void)guarded([&] {
    const std::vector<engine::PreparedTransaction> all = kernel->prepared_transactions();
    uint filled = 0;
    for (; recovered_so_far < all.size() && filled < length; ++recovered_so_far) {
      if (decode_xid(all[recovered_so_far].xid, &list[filled])) {
        ++filled;
      } else {
        sql_print_error("STRATA: a prepared transaction has an unreadable xid; it stays prepared");
      }
    }
    if (filled < length) recovered_so_far = 0;
    found = static_cast<int>(filled);
    return 0;
  });
  return found;
}

int commit_by_xid(handlerton*, XID* xid) {
  int result = kXaResourceManagerError;
  (void)guarded([&] {
    result = xa_error(kernel->commit_by_xid(encode_xid(*xid)));
    return 0;
  });
  return result;
}

int rollback_by_xid(handlerton*, XID* xid) {
  int result = kXaResourceManagerError;
  (void)guarded([&] {
    result = xa_error(kernel->rollback_by_xid(encode_xid(*xid)));
    return 0;
  });
  return result;
}

bool flush_logs(handlerton*) {
  return guarded([&] { return handler_error(kernel->persist_log(), nullptr); }) != 0;
}

void commit_checkpoint_request(void* cookie) {
  (void)guarded([&] { return handler_error(kernel->persist_log(), nullptr); });
  commit_checkpoint_notify_ha(cookie);
}

}  // namespace strata::glue
