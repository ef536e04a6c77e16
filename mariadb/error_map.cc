// The only place that knows which handler error an engine outcome becomes. No default: a status
// code that nobody thought about must not compile.
#include "mariadb/error_map.h"

namespace strata::glue {
namespace {

void log_status(const char* what, const Status& status) {
  sql_print_error("STRATA: %s: %.*s", what, static_cast<int>(status.message().size()),
                  status.message().data());
}

}  // namespace

int handler_error(const Status& status, THD* thd) {
  switch (status.code()) {
    case StatusCode::kOk:
      return 0;
    case StatusCode::kAborted:  // deadlock: the session only takes rollback() from here
      if (thd != nullptr) thd->mark_transaction_to_rollback(true);
      if (status.message().empty()) return HA_ERR_LOCK_DEADLOCK;
      log_status("rolled back", status);  // for another reason (engine E18)
      return HA_ERR_ROLLBACK;
    case StatusCode::kDeadlineExceeded:
      if (thd != nullptr) thd->mark_transaction_to_rollback(false);
      return HA_ERR_LOCK_WAIT_TIMEOUT;
    case StatusCode::kCancelled:
      if (thd != nullptr) thd->mark_transaction_to_rollback(false);
      return HA_ERR_ABORTED_BY_USER;
    case StatusCode::kAlreadyExists:
      return HA_ERR_FOUND_DUPP_KEY;
    case StatusCode::kNotFound:
      return HA_ERR_KEY_NOT_FOUND;
    case StatusCode::kDataLoss:
      log_status("damaged data", status);
      return HA_ERR_CRASHED;
    case StatusCode::kFailedPrecondition:
      log_status("refused", status);
      return HA_ERR_TABLE_READONLY;
    case StatusCode::kUnavailable:
      log_status("not reachable", status);
      return HA_ERR_NO_CONNECTION;
    case StatusCode::kUnknown:
      log_status("outcome unknown", status);
      return HA_ERR_COMMIT_ERROR;
    case StatusCode::kResourceExhausted:
      if (!status.message().empty()) log_status("out of space or memory", status);
      return HA_ERR_RECORD_FILE_FULL;
    case StatusCode::kInvalidArgument:
      if (!status.message().empty()) log_status("not possible", status);
      return HA_ERR_UNSUPPORTED;
    case StatusCode::kOutOfRange:
      return HA_ERR_TO_BIG_ROW;
    case StatusCode::kUnimplemented:  // definition changed
      return HA_ERR_TABLE_DEF_CHANGED;
    case StatusCode::kPermissionDenied:
    case StatusCode::kUnauthenticated:
    case StatusCode::kInternal:
      log_status("internal error", status);
      return HA_ERR_INTERNAL_ERROR;
    case StatusCode::kDoNotUseReservedForFutureExpansionUseDefaultInSwitchInstead_:
      break;
  }
  log_status("unknown status", status);
  return HA_ERR_INTERNAL_ERROR;
}

}  // namespace strata::glue
