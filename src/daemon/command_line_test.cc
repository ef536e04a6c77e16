// What the command lines of daemons have in common: what is read, and how the rest is refused.
#include "daemon/command_line.h"

#include <gtest/gtest.h>

#include "daemon/exit_codes.h"
#include "daemon/testing/child.h"

namespace strata::daemon {
namespace {

struct Read {
  uint64_t size = 512u << 20;
  std::vector<std::string> listen;
  std::string http = "127.0.0.1:0";
  Level level = Level::kInfo;
};

std::optional<int> read(std::vector<std::string> arguments, Read* into) {
  CLI::App app("For tests.", "scripted");
  add_size(&app, "--size", &into->size, 1, "Memory");
  add_listen(&app, &into->listen);
  add_http(&app, &into->http);
  add_log_level(&app, &into->level);
  arguments.insert(arguments.begin(), "scripted");
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  return parse(&app, static_cast<int>(pointers.size()), pointers.data(), "scripted");
}

TEST(CommandLine, IsRead) {
  Read read_none;
  EXPECT_EQ(read({}, &read_none), std::nullopt);
  EXPECT_EQ(read_none.size, 512u << 20);
  EXPECT_EQ(finish_http(read_none.http).port, 0);
  Read all;
  EXPECT_EQ(read({"--size", "16M", "--listen", "127.0.0.1:1", "--listen", "unix:/a", "--http",
                  "[::1]:7", "--log-level", "warning"},
                 &all),
            std::nullopt);
  EXPECT_EQ(all.size, 16u << 20);
  EXPECT_EQ(all.listen, (std::vector<std::string>{"127.0.0.1:1", "unix:/a"}));
  EXPECT_EQ(finish_http(all.http).host, "::1");
  EXPECT_EQ(finish_http(all.http).port, 7);
  EXPECT_EQ(all.level, Level::kWarning);
}

TEST(CommandLine, WhatCannotBeIsOneLineOnStandardError) {
  const std::vector<std::vector<std::string>> cases{
      {"--size", "1"},           {"--size", "x"},       {"--size", "2097152M"},
      {"--listen", "8.8.8.8:1"}, {"--listen", "a:1"},   {"--http", "unix:/a"},
      {"--log-level", "loud"},   {"--what", "is this"}, {"--size"}};
  for (const auto& arguments : cases) {
    testing::Child child([&] {
      Read into;
      return read(arguments, &into).value_or(0);
    });
    const std::string said = child.error_rest();
    EXPECT_EQ(said.find("scripted: "), 0u) << said;
    EXPECT_TRUE(said.ends_with(" (see --help)\n")) << said;
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
    EXPECT_EQ(child.rest(), "");
    EXPECT_EQ(child.ended(), kUsage) << arguments[0];
  }
}

TEST(CommandLine, HelpGoesToStandardOutput) {
  testing::Child child([] {
    Read into;
    const auto code = read({"--help"}, &into);
    std::cout.flush();
    return code.value_or(99);
  });
  const std::string said = child.rest();
  EXPECT_NE(said.find("--log-level"), std::string::npos) << said;
  EXPECT_NE(said.find("=512M"), std::string::npos) << said;
  EXPECT_EQ(child.error_rest(), "");
  EXPECT_EQ(child.ended(), 0);
}

}  // namespace
}  // namespace strata::daemon
