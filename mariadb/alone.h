// An exclusive metadata lock, for threads of ours.
#pragma once

#include "mariadb/server.h"

namespace strata::glue {

// If it can be had in time: nobody of this server uses what has that name, or begins to. Names as
// statements write them (plain_name()).
class Alone {
 public:
  Alone(THD* thd, MDL_key::enum_mdl_namespace kind, const char* schema, const char* name,
        double timeout_s)
      : thd_(thd) {
    MDL_REQUEST_INIT(&request_, kind, schema, name, MDL_EXCLUSIVE, MDL_EXPLICIT);
    // Refused when the time is over, or to break a circle.
    if (thd->mdl_context.acquire_lock(&request_, timeout_s)) {
      request_.ticket = nullptr;
      thd->clear_error();
    }
  }
  ~Alone() {
    if (has_it()) thd_->mdl_context.release_lock(request_.ticket);
  }
  Alone(const Alone&) = delete;
  [[nodiscard]] bool has_it() const noexcept { return request_.ticket != nullptr; }

 private:
  THD* const thd_;
  MDL_request request_;
};

// What a file or folder is called in statements.
inline std::string plain_name(const std::string& file) {
  char plain[SAFE_NAME_LEN + 1];
  (void)filename_to_tablename(file.c_str(), plain, sizeof plain, true);
  return plain;
}

}  // namespace strata::glue
