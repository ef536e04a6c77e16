// Transactions that clients have prepared (XA PREPARE) and whose connections still have them.
//
//   XP1  The server lets others decide such a transaction before it tells the engine that its
//        connection has ended, and says OK even if the engine does not find it. So who is asked to
//        decide one that a connection still has waits until that one has let it go.
#pragma once

#include <string>

#include "base/status.h"

namespace strata::glue {

// While it lives, a connection has the prepared transaction.
class PreparedHere {
 public:
  explicit PreparedHere(std::string xid);  // as it is stored
  ~PreparedHere();
  PreparedHere(const PreparedHere&) = delete;

 private:
  const std::string xid_;
};

// XP1. An error if it is still had after some seconds.
Status wait_until_let_go(const std::string& xid);

}  // namespace strata::glue
