// A thread of ours as one of the server's.
#pragma once

#include "mariadb/server.h"

// sql_class.cc of the server; no header of it declares them.
THD* create_background_thd();
void* thd_attach_thd(THD* thd);
void thd_detach_thd(void* before);
void destroy_background_thd(THD* thd);

namespace strata::glue {

// This thread as one of the server's, for as long as it lives. No KILL finds it.
class ServerThread {
 public:
  ServerThread() : was_(current_thd), thd_(create_background_thd()) {
    set_current_thd(nullptr);
    before_ = thd_attach_thd(thd_);
    thd_->set_query_id(next_query_id());
  }
  ~ServerThread() {
    thd_->mdl_context.release_transactional_locks(thd_);
    thd_detach_thd(before_);
    destroy_background_thd(thd_);
    set_current_thd(was_);
  }
  ServerThread(const ServerThread&) = delete;
  [[nodiscard]] THD* thd() const noexcept { return thd_; }

 private:
  THD* const was_;  // while the server starts, its main thread is one already
  THD* const thd_;
  void* before_ = nullptr;
};

}  // namespace strata::glue
