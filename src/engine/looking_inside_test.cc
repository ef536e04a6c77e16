// L16 and what Kernel tells people of transactions and waits: connections, statements, tables and
// keys are those of the transactions that wait, and a deadlock's report names all of them.
#include <atomic>
#include <thread>

#include "base/diag.h"
#include "base/testing/wait_until.h"
#include "engine/testing/test_database.h"

namespace strata::engine {
namespace {

using namespace testing;  // NOLINT: test helpers

// Owners are numbers of connections; each runs the statement of that number.
class Listener final : public WaitListener {
 public:
  void wait_begins(void*) noexcept override {}
  void wait_ends(void*) noexcept override {}
  bool wants_reports(void*) noexcept override { return false; }
  void waits_for(void*, void*) noexcept override {}
  int preferred_victim(void*, void*) noexcept override { return 0; }
  WaitOwner describe(void* owner) noexcept override {
    const auto number = reinterpret_cast<uint64_t>(owner);
    return {number, "statement " + std::to_string(number)};
  }
};

std::string logged;  // by the one thread that finds the deadlock
void keep_message(Severity /*severity*/, std::string_view message) { logged.append(message); }

class LookingInsideTest : public ::testing::Test {
 protected:
  void SetUp() override {
    KernelOptions options = options_on(disk_.get());
    options.wait_listener = &listener_;
    auto opened = Kernel::open(options);
    ASSERT_TRUE(opened.ok()) << opened.status();
    kernel_ = std::move(opened).value();
    const auto session = kernel_->new_session();
    session->begin(Isolation::kRepeatableRead);
    ASSERT_TRUE(session->create_table(table_spec("t"), &table_).ok());
    ASSERT_TRUE(session->commit().ok());
    session->begin(Isolation::kRepeatableRead);
    for (const uint64_t id : {1, 2}) ASSERT_TRUE(insert(session.get(), table_, id, row(id)).ok());
    ASSERT_TRUE(session->commit().ok());
  }
  static Row row(uint64_t n) { return Row{n * 1000, 1, "text", ""}; }
  std::unique_ptr<Session> begin(uint64_t connection) {
    std::unique_ptr<Session> session = kernel_->new_session();
    session->set_owner(reinterpret_cast<void*>(connection));
    session->begin(Isolation::kRepeatableRead);
    return session;
  }
  Status touch(Session* session, uint64_t id) {
    return update(session, table_, id, row(id), id, Row{id * 1000, 1, "touched", ""});
  }

  std::unique_ptr<SimFileSystem> disk_ = make_sim_file_system();
  Listener listener_;
  std::unique_ptr<Kernel> kernel_;
  TableRef table_;
};

TEST_F(LookingInsideTest, WaitsAndADeadlockAreToldWithStatementsTablesAndKeys) {
  const auto first = begin(11);
  const auto second = begin(22);
  ASSERT_TRUE(touch(first.get(), 1).ok());
  ASSERT_TRUE(touch(second.get(), 2).ok());
  std::vector<Kernel::TransactionInfo> running = kernel_->transactions();
  ASSERT_EQ(running.size(), 2u);
  for (const Kernel::TransactionInfo& trx : running) {
    EXPECT_STREQ(trx.state, "ACTIVE");
    EXPECT_TRUE(trx.id == first->trx_id() || trx.id == second->trx_id());
    EXPECT_EQ(trx.connection, trx.id == first->trx_id() ? 11u : 22u);
    EXPECT_EQ(trx.statement, "statement " + std::to_string(trx.connection));
  }
  EXPECT_TRUE(kernel_->lock_waits(10).empty());

  Status waited;
  std::thread waiting([&] { waited = touch(first.get(), 2); });
  ASSERT_TRUE(strata::testing::wait_until([&] { return kernel_->lock_waits(10).size() == 1; }));
  const Kernel::LockWaitInfo wait = kernel_->lock_waits(10)[0];
  EXPECT_EQ(wait.waiter, first->trx_id());
  EXPECT_EQ(wait.holder, second->trx_id());
  EXPECT_EQ(wait.waiter_connection, 11u);
  EXPECT_EQ(wait.holder_connection, 22u);
  EXPECT_EQ(wait.schema + "." + wait.table + "." + wait.index, "test.t.PRIMARY");
  EXPECT_EQ(wait.key, "0000000000000002");

  set_diag_sink(keep_message);
  EXPECT_TRUE(is_deadlock(touch(second.get(), 1)));
  set_diag_sink(nullptr);
  EXPECT_NE(logged.find("connection 11: statement 11"), std::string::npos) << logged;
  EXPECT_NE(logged.find("connection 22: statement 22"), std::string::npos) << logged;
  const std::string text = kernel_->status_text();
  for (const char* part :
       {"Latest deadlock", "connection 11: statement 11", "connection 22: statement 22",
        "test.t, index PRIMARY, key 0000000000000001", "key 0000000000000002"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  EXPECT_NE(text.find("transaction " + std::to_string(second->trx_id()) + " is rolled back"),
            std::string::npos)
      << text;
  ASSERT_TRUE(second->rollback().ok());
  waiting.join();
  EXPECT_TRUE(waited.ok()) << waited;
  ASSERT_TRUE(first->rollback().ok());
  EXPECT_TRUE(kernel_->transactions().empty());
}

}  // namespace
}  // namespace strata::engine
