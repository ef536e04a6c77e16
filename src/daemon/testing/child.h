// For tests: a function run in a process of its own, whose output is read and which is signalled.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <string>

namespace strata::daemon::testing {

class Child {
 public:
  // What the function returns is the exit code. While no other thread runs.
  explicit Child(const std::function<int()>& body) {
    int out[2];
    int err[2];
    EXPECT_EQ(::pipe2(out, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(err, O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(out[1], STDOUT_FILENO);
      ::dup2(err[1], STDERR_FILENO);
      for (const int end : {out[0], out[1], err[0], err[1]}) ::close(end);
      ::_exit(body());
    }
    ::close(out[1]);
    ::close(err[1]);
    out_ = out[0];
    err_ = err[0];
  }
  ~Child() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    close_error();
    ::close(out_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void signal(int number) const { EXPECT_EQ(::kill(pid_, number), 0); }
  // A line without its end, or what there is when the stream ends.
  std::string line() const { return read_line(out_); }
  std::string error_line() const { return read_line(err_); }
  std::string rest() const { return read_all(out_); }
  std::string error_rest() const { return read_all(err_); }
  void close_error() {
    if (err_ >= 0) ::close(err_);
    err_ = -1;
  }
  // Its exit code, or minus the signal that ended it. Blocks until it ends; read its output first.
  int ended() {
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  static constexpr int kPatienceMs = 60'000;
  static bool read_one(int fd, char* c) {
    pollfd wanted{fd, POLLIN, 0};
    if (::poll(&wanted, 1, kPatienceMs) == 1) return ::read(fd, c, 1) == 1;
    ADD_FAILURE() << "it said nothing more";
    return false;
  }
  static std::string read_line(int fd) {
    std::string line;
    for (char c = 0; read_one(fd, &c) && c != '\n';) line.push_back(c);
    return line;
  }
  static std::string read_all(int fd) {
    std::string text;
    for (char c = 0; read_one(fd, &c);) text.push_back(c);
    return text;
  }
  pid_t pid_ = 0;
  int out_ = -1;
  int err_ = -1;
};

}  // namespace strata::daemon::testing
