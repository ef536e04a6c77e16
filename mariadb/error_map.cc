// The only place that knows which handler error an engine outcome becomes. No default: a status
// code that nobody thought about must not compile.
#include "mariadb/error_map.h"

namespace strata::glue {
namespace {

void log_status(const char* what, const Status& status) {
  sql_print_error("STRATA: %s: %.*s", what, static_cast<int>(status.message().size()),
                  status.message().data());
}

// What the last error of this thread said, for last_error_text(). One statement runs in one thread.
struct LastError {
  int code = 0;
  bool may_pass = false;
  std::string text;
};
thread_local LastError last_error;

// A text of ours reaches the client only with a code that the server has no text for.
int with_text(int code, const Status& status) {
  last_error = {code, status.code() == StatusCode::kUnavailable, std::string(status.message())};
  return code;
}

}  // namespace

bool last_error_text(int error, String* text) {
  if (error != last_error.code || last_error.text.empty()) return false;
  text->copy(last_error.text.data(), last_error.text.size(), system_charset_info);
  return last_error.may_pass;
}

void tell_client(const Status& status) {
  if (status.message().empty()) return;
  const bool may_pass = status.code() == StatusCode::kUnavailable;
  const uint number = may_pass ? ER_GET_TEMPORARY_ERRMSG : ER_GET_ERRMSG;
  const std::string text(status.message());
  my_error(number, MYF(0), may_pass ? HA_ERR_NO_CONNECTION : HA_ERR_INTERNAL_ERROR, text.c_str(),
           "STRATA");
}

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
      return with_text(HA_ERR_INTERNAL_ERROR, status);
    case StatusCode::kUnavailable:
      log_status("not reachable", status);
      return with_text(HA_ERR_NO_CONNECTION, status);
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
      return with_text(HA_ERR_INTERNAL_ERROR, status);
    case StatusCode::kDoNotUseReservedForFutureExpansionUseDefaultInSwitchInstead_:
      break;
  }
  log_status("unknown status", status);
  return HA_ERR_INTERNAL_ERROR;
}

}  // namespace strata::glue
