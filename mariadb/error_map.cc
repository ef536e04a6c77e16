// The only place that knows which handler error an engine outcome becomes.
#include "mariadb/error_map.h"

namespace strata::glue {
namespace {

void log_status(const char* what, const Status& status) {
  sql_print_error("STRATA: %s: %s", what, cause_and_remedy(status).c_str());
}

// What the last error of this thread said, for last_error_text(). One statement runs in one thread.
struct LastError {
  int code = 0;
  bool may_pass = false;
  std::string text;
};
thread_local LastError last_error;

// One outcome as the server knows it. With `ours` the server has nothing to say but a number, and
// what reaches the client is our cause and remedy.
struct Mapped {
  int handler_error;
  const char* logged = nullptr;  // before the message in the server's log; null: not logged
  bool ours = false;
};

// No default: an error that nobody thought about must not compile.
Mapped mapped(const Status& status) {
  const bool says_something = !status.message().empty();
  switch (error_of(status)) {
    case Error::ok:
      return {0};
    case Error::deadlock:
      // With a message: rolled back for another reason (engine E18).
      return says_something ? Mapped{HA_ERR_ROLLBACK, "rolled back"} : Mapped{HA_ERR_LOCK_DEADLOCK};
    case Error::row_changed:
      return {HA_ERR_RECORD_CHANGED};
    case Error::lock_wait_timeout:
      return {HA_ERR_LOCK_WAIT_TIMEOUT};
    case Error::interrupted:
      return {HA_ERR_ABORTED_BY_USER};
    case Error::duplicate_key:
      return {HA_ERR_FOUND_DUPP_KEY};
    case Error::not_found:
      return {HA_ERR_KEY_NOT_FOUND};
    case Error::corruption:
      return {HA_ERR_CRASHED, "damaged data"};
    case Error::no_space:
      return {HA_ERR_RECORD_FILE_FULL, says_something ? "out of space or memory" : nullptr};
    case Error::invalid_argument:
      return {HA_ERR_UNSUPPORTED, says_something ? "not possible" : nullptr};
    case Error::out_of_range:
      return {HA_ERR_TO_BIG_ROW};
    case Error::row_is_referenced:
      return {HA_ERR_ROW_IS_REFERENCED};
    case Error::no_referenced_row:
      return {HA_ERR_NO_REFERENCED_ROW};
    case Error::cascade_too_deep:
      return {HA_ERR_FK_DEPTH_EXCEEDED};
    case Error::cascaded_duplicate:
      return {HA_ERR_FOREIGN_DUPLICATE_KEY};
    case Error::foreign_key_refused:
      return {HA_ERR_CANNOT_ADD_FOREIGN};
    case Error::definition_changed:
      return {HA_ERR_TABLE_DEF_CHANGED};
    case Error::outcome_unknown:
      return {HA_ERR_COMMIT_ERROR, "outcome unknown"};
    case Error::peer_down:
    case Error::timed_out:
    case Error::no_session:
      return {HA_ERR_NO_CONNECTION, "not reachable", true};
    case Error::lease_lost:
      return {HA_ERR_NO_CONNECTION, "refused for now", true};
    case Error::busy:
      return {HA_ERR_NO_CONNECTION, "busy", true};
    case Error::fenced:
    case Error::ended:
    case Error::withdrawn:
    case Error::conflict:
    case Error::wrong_database:
    case Error::unsupported:
    case Error::in_use:
    case Error::wrong_secret:
      return {HA_ERR_INTERNAL_ERROR, "refused", true};
    case Error::io_error:
      return {HA_ERR_INTERNAL_ERROR, "file error", true};
    case Error::internal:
      return {HA_ERR_INTERNAL_ERROR, "internal error", true};
  }
  return {HA_ERR_INTERNAL_ERROR, "unknown status", true};
}

// What the server's transaction has to do, so that it agrees with ours.
void mark_for_rollback(const Status& status, THD* thd) {
  if (error_class(status) == ErrorClass::abort_trx)
    thd->mark_transaction_to_rollback(true);  // the session only takes rollback() from here
  else if (is_lock_wait_timeout(status) || is_interrupted(status))
    thd->mark_transaction_to_rollback(false);
}

}  // namespace

bool last_error_text(int error, String* text) {
  if (error != last_error.code || last_error.text.empty()) return false;
  text->copy(last_error.text.data(), last_error.text.size(), system_charset_info);
  return last_error.may_pass;
}

void tell_client(const Status& status) {
  if (is_lock_wait_timeout(status)) return my_error(ER_LOCK_WAIT_TIMEOUT, MYF(0));
  if (is_interrupted(status) && current_thd != nullptr) return current_thd->send_kill_message();
  if (status.message().empty() && !mapped(status).ours) return;
  const uint number = may_pass(status) ? ER_GET_TEMPORARY_ERRMSG : ER_GET_ERRMSG;
  const std::string text = cause_and_remedy(status);
  my_error(number, MYF(0), may_pass(status) ? HA_ERR_NO_CONNECTION : HA_ERR_INTERNAL_ERROR,
           text.c_str(), "STRATA");
}

bool server_has_no_text(const Status& status) { return mapped(status).ours; }

int handler_error(const Status& status, THD* thd) {
  const Mapped to = mapped(status);
  if (thd != nullptr && !status.ok()) mark_for_rollback(status, thd);
  if (to.logged != nullptr) log_status(to.logged, status);
  if (to.ours) last_error = {to.handler_error, may_pass(status), cause_and_remedy(status)};
  return to.handler_error;
}

}  // namespace strata::glue
