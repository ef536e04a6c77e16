// One translation of kernel outcomes into the server's handler errors.
#pragma once

#include "mariadb/server.h"

namespace strata::glue {

// 0 when OK. Marks the server's transaction for rollback where the outcome demands it: the whole
// one after a deadlock, the statement after a lock wait that failed. Logs what an operator must
// see.
int handler_error(const Status& status, THD* thd);

// What the status said that became the handler error `error` last in this thread: for
// handler::get_error_message(). Nothing is added to *text when the server has a text of its own.
// True: it may pass by itself.
bool last_error_text(int error, String* text);
// Reports the status where the server would only say a number. The first error of a statement is
// the one that the client gets: the cause, and what to do about it (ER5).
void tell_client(const Status& status);
// True: what the server would say to this is a number, so tell_client() is needed.
bool server_has_no_text(const Status& status);

// Runs `body` (returning a handler error); no C++ exception may cross into the server.
template <typename Body>
int guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (const std::exception& e) {
    sql_print_error("STRATA: %s", e.what());
    return HA_ERR_OUT_OF_MEM;
  }
}

}  // namespace strata::glue
