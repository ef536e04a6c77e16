// Goal: both sides end the handshake only when both know the secret, and nothing recorded helps
// (HS1-HS3); the secret's file is refused unless it is private. Method: messages carried by hand.
#include "transport/calls/handshake.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

namespace strata::transport {
namespace {

Secret secret_of(char fill) {
  std::array<char, Secret::kBytes> bytes;
  bytes.fill(fill);
  return Secret(bytes);
}

ClientHandshake client_of(const Secret& secret) {
  return ClientHandshake(secret, Hello{.manner = Manner::kLively, .channel_id = 99},
                         system_entropy());
}

TEST(Handshake, BothSidesAgree) {
  const Secret secret = secret_of('s');
  ClientHandshake client = client_of(secret);
  ServerHandshake server(secret, 1234, system_entropy());
  const auto challenge = server.receive(client.hello());
  ASSERT_TRUE(challenge.ok()) << challenge.status();
  EXPECT_FALSE(server.done());
  const auto proof = client.receive(*challenge);
  ASSERT_TRUE(proof.ok()) << proof.status();
  EXPECT_FALSE(client.done());
  const auto welcome = server.receive(*proof);
  ASSERT_TRUE(welcome.ok()) << welcome.status();
  EXPECT_TRUE(server.done());
  EXPECT_EQ(server.hello().manner, Manner::kLively);
  EXPECT_EQ(server.hello().channel_id, 99u);
  ASSERT_TRUE(client.receive(*welcome).ok());
  EXPECT_TRUE(client.done());
  EXPECT_EQ(client.server_life(), 1234u);
  for (const std::string& m : {client.hello(), *challenge, *proof, *welcome})
    EXPECT_LE(m.size(), kHandshakePayloadBytesMax);
}

TEST(Handshake, AnotherSecretIsFoundByTheClientFirstAndByTheServerInAnyCase) {
  ClientHandshake client = client_of(secret_of('c'));
  ServerHandshake server(secret_of('s'), 1, system_entropy());
  const auto challenge = server.receive(client.hello());
  ASSERT_TRUE(challenge.ok());
  EXPECT_TRUE(is_wrong_secret(client.receive(*challenge).status()));
  // A client that goes on nevertheless.
  std::string proof(1 + kMacBytes, '\0');
  proof[0] = 3;
  EXPECT_TRUE(is_wrong_secret(server.receive(proof).status()));
  EXPECT_FALSE(server.done());
}

TEST(Handshake, ARecordedOneIsWorthNothing) {
  const Secret secret = secret_of('s');
  ClientHandshake client = client_of(secret);
  ServerHandshake server(secret, 1, system_entropy());
  const std::string challenge = *server.receive(client.hello());
  const std::string proof = *client.receive(challenge);
  ASSERT_TRUE(server.receive(proof).ok());

  ServerHandshake again(secret, 1, system_entropy());
  ASSERT_TRUE(again.receive(client.hello()).ok());
  EXPECT_FALSE(again.receive(proof).ok());
  ClientHandshake other = client_of(secret);
  EXPECT_FALSE(other.receive(challenge).ok());
}

TEST(Handshake, AProofIsNotGoodInTheOtherDirection) {
  // The server's own proof sent back to it.
  const Secret secret = secret_of('s');
  ClientHandshake client = client_of(secret);
  ServerHandshake server(secret, 1, system_entropy());
  const std::string challenge = *server.receive(client.hello());
  std::string reflected(1, '\3');
  reflected += challenge.substr(1 + kNonceBytes);
  EXPECT_FALSE(server.receive(reflected).ok());
}

TEST(Handshake, EveryChangedByteAndEveryMessageOutOfTurnIsRefused) {
  const Secret secret = secret_of('s');
  for (size_t i = 0; i < 1 + kNonceBytes + kMacBytes; i++) {
    ClientHandshake client = client_of(secret);
    ServerHandshake server(secret, 1, system_entropy());
    std::string challenge = *server.receive(client.hello());
    ASSERT_LT(i, challenge.size());
    challenge[i] = static_cast<char>(challenge[i] ^ 0x40);
    EXPECT_FALSE(client.receive(challenge).ok()) << i;
  }
  ClientHandshake client = client_of(secret);
  ServerHandshake server(secret, 1, system_entropy());
  std::string hello = client.hello();
  hello[2] ^= 1;  // the channel: the client's view and the server's differ
  const std::string challenge = *server.receive(hello);
  EXPECT_FALSE(client.receive(challenge).ok());
  EXPECT_FALSE(server.receive(client.hello()).ok()) << "a second hello";
  EXPECT_FALSE(ServerHandshake(secret, 1, system_entropy()).receive(std::string(33, '\3')).ok());
  EXPECT_FALSE(ServerHandshake(secret, 1, system_entropy()).receive("").ok());
  EXPECT_FALSE(client_of(secret).receive(std::string(9, '\4')).ok()) << "welcome before proof";
}

class SecretFile : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/strata-secret-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    path_ = folder_ + "/secret";
  }
  void TearDown() override {
    ::unlink(path_.c_str());
    ::rmdir(folder_.c_str());
  }
  std::string folder_, path_;
};

TEST_F(SecretFile, IsMadeOnceAndRead) {
  EXPECT_EQ(load_secret(path_).status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(create_secret_file(path_).ok());
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  const auto first = load_secret(path_);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(create_secret_file(path_).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(load_secret(path_)->bytes(), first->bytes());
}

TEST_F(SecretFile, IsRefusedUnlessPrivateAndWhole) {
  ASSERT_TRUE(create_secret_file(path_).ok());
  for (const mode_t mode : {0640, 0604, 0660, 0700}) {
    ASSERT_EQ(::chmod(path_.c_str(), mode), 0);
    EXPECT_EQ(load_secret(path_).status().code(), StatusCode::kInvalidArgument) << mode;
  }
  ASSERT_EQ(::chmod(path_.c_str(), 0600), 0);
  ASSERT_TRUE(load_secret(path_).ok());
  ASSERT_EQ(::truncate(path_.c_str(), 31), 0);
  EXPECT_EQ(load_secret(path_).status().code(), StatusCode::kInvalidArgument);
  const std::string link = folder_ + "/link";
  ASSERT_EQ(::symlink(path_.c_str(), link.c_str()), 0);
  EXPECT_EQ(load_secret(link).status().code(), StatusCode::kInvalidArgument);
  ::unlink(link.c_str());
  EXPECT_FALSE(load_secret(folder_).ok());
}

}  // namespace
}  // namespace strata::transport
