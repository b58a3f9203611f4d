// Downloads from a hub that misbehaves: cut, slow, lying, busy. Nothing is lost, nothing false is kept, and each failure is
// one sentence.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <thread>

#include "base/error.h"
#include "support/gguf_bytes.h"
#include "support/hub_files.h"
#include "support/hub_server.h"
#include "support/text_files.h"
#include "tools/hub/digest.h"
#include "tools/hub/downloads.h"
#include "tools/hub/pull.h"

namespace tandem::tools {
namespace {

namespace fs = std::filesystem;
using test::HubReply;
using test::HubRequest;
using test::random_bytes;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kRepo = "user/model-GGUF";
constexpr const char* kFile = "model-Q4_K_M.gguf";

class HubDownload : public testing::Test {
 protected:
  void SetUp() override {
    settings_.endpoint = hub_.url();
    settings_.cache_folder = folder_.path("hub");
    settings_.url_folder = folder_.path("urls");
    settings_.retries = {.max_attempts = 3, .first_wait_s = 0.001, .max_wait_s = 0.1};
    settings_.timeouts = {.connect_s = 5, .stall_s = 1};
    content_ = random_bytes(300000, 1);
    hub_.add(kRepo, kFile, content_);
  }

  std::string pull(const std::string& name = kRepo, const std::string& file = "") {
    HttpClient http(settings_.timeouts);
    return pull_model(http, settings_, find_model(http, settings_, *parse_model_name(name), file));
  }
  std::string pull_from_url(const std::string& url) {
    HttpClient http(settings_.timeouts);
    return pull_url(http, settings_, url);
  }
  // The message of a pull that fails; checks its code.
  std::string failure(ErrorCode code = ErrorCode::io, const std::string& name = kRepo) {
    try {
      pull(name);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), code) << e.what();
      return e.what();
    }
    return "no failure";
  }
  std::string blob(const std::string& repo = kRepo) const {
    for (const auto& entry :
         fs::directory_iterator(HubCache(settings_.cache_folder).repo_folder(repo) + "/blobs"))
      return entry.path();
    return "";
  }
  // Changes replies with contents of files.
  void change_contents(std::function<void(const HubRequest&, HubReply&)> change) {
    hub_.change = [change](const HubRequest& request, HubReply& reply) {
      if (request.at_storage) change(request, reply);
    };
  }

  test::TempDir folder_;
  test::HubServer hub_;
  HubSettings settings_;
  std::string content_;
};

TEST_F(HubDownload, KeepsTheLayoutOfTheHubsOwnClient) {
  const std::string path = pull();
  const std::string repo = settings_.cache_folder + "/models--user--model-GGUF";
  const std::string commit = "0123456789abcdef0123456789abcdef01234567", id = sha256_hex(content_);
  EXPECT_EQ(path, repo + "/snapshots/" + commit + "/" + kFile);
  EXPECT_EQ(test::file_bytes(path), content_);
  EXPECT_EQ(fs::read_symlink(path), "../../blobs/" + id);
  EXPECT_EQ(test::file_bytes(repo + "/refs/main"), commit);
  EXPECT_EQ(std::distance(fs::directory_iterator(repo + "/blobs"), {}), 1);
  EXPECT_TRUE(fs::exists(settings_.cache_folder + "/.locks/models--user--model-GGUF/" + id + ".lock"));
}

TEST_F(HubDownload, DownloadsOnce) {
  pull();
  pull();
  EXPECT_EQ(hub_.count("/resolve/"), 1u);
  // A new commit with the same file needs only a link.
  hub_.set_commit(kRepo, std::string(40, 'b'));
  const std::string path = pull();
  EXPECT_THAT(path, HasSubstr("/" + std::string(40, 'b') + "/"));
  EXPECT_EQ(test::file_bytes(path), content_);
  EXPECT_EQ(hub_.count("/resolve/"), 1u);
}

TEST_F(HubDownload, FindsWhatAnotherProgramDownloaded) {
  const std::string repo = settings_.cache_folder + "/models--user--model-GGUF", id = sha256_hex(content_);
  const std::string commit = "0123456789abcdef0123456789abcdef01234567";
  fs::create_directories(repo + "/blobs");
  fs::create_directories(repo + "/refs");
  fs::create_directories(repo + "/snapshots/" + commit);
  test::write_file(repo + "/blobs/" + id, content_);
  test::write_file(repo + "/refs/main", commit);
  fs::create_symlink("../../blobs/" + id, repo + "/snapshots/" + commit + "/" + kFile);
  EXPECT_EQ(test::file_bytes(pull()), content_);
  EXPECT_EQ(hub_.count("/resolve/"), 0u);
}

TEST_F(HubDownload, TakesAllPartsAndFoldersAndSmallFiles) {
  std::vector<std::string> parts;
  for (int i = 1; i <= 3; ++i) {
    parts.push_back(random_bytes(1000, static_cast<uint32_t>(i)));
    hub_.add(kRepo, "Q8_0/m-0000" + std::to_string(i) + "-of-00003.gguf", parts.back(), false);  // sha1
  }
  const std::string path = pull(std::string(kRepo) + ":q8_0");
  EXPECT_TRUE(path.ends_with("/Q8_0/m-00001-of-00003.gguf")) << path;
  for (int i = 1; i <= 3; ++i) {
    const std::string part =
        fs::path(path).parent_path().string() + "/m-0000" + std::to_string(i) + "-of-00003.gguf";
    EXPECT_EQ(test::file_bytes(part), parts[static_cast<size_t>(i - 1)]);
    EXPECT_EQ(fs::read_symlink(part).string().rfind("../../../blobs/", 0), 0u);
  }
}

TEST_F(HubDownload, ReadsEveryPageOfTheListing) {
  for (int i = 0; i < 25; ++i) hub_.add(kRepo, "file-" + std::to_string(i) + ".txt", "x", false);
  hub_.add(kRepo, "z-Q8_0.gguf", "last page");
  hub_.page_size = 10;
  EXPECT_EQ(test::file_bytes(pull(std::string(kRepo) + ":Q8_0")), "last page");
}

TEST_F(HubDownload, ContinuesAfterACut) {
  std::atomic<int> n{0};
  change_contents([&](const HubRequest& request, HubReply& reply) {
    if (n++ == 0) reply.cut_after = 100000;
    if (n == 2) {
      EXPECT_EQ(request.header("range"), "bytes=100000-");
    }
  });
  EXPECT_EQ(test::file_bytes(pull()), content_);
  EXPECT_EQ(n, 2);
}

TEST_F(HubDownload, ContinuesInTheNextRun) {
  change_contents([](const HubRequest&, HubReply& reply) { reply.cut_after = 70000; });
  settings_.retries.max_attempts = 1;
  EXPECT_THAT(failure(), HasSubstr("127.0.0.1"));
  EXPECT_TRUE(blob().ends_with(".incomplete"));
  EXPECT_EQ(fs::file_size(blob()), 70000u);
  std::string range;
  change_contents([&](const HubRequest& request, HubReply&) { range = request.header("range"); });
  EXPECT_EQ(test::file_bytes(pull()), content_);
  EXPECT_EQ(range, "bytes=70000-");
}

TEST_F(HubDownload, StartsAgainWhereRangesAreIgnored) {
  std::atomic<int> n{0};
  change_contents([&](const HubRequest&, HubReply& reply) {
    reply.status = 200;
    reply.headers.erase("Content-Range");
    reply.body = content_;
    if (n++ == 0) reply.cut_after = 100000;
  });
  EXPECT_EQ(test::file_bytes(pull()), content_);
}

TEST_F(HubDownload, ReplacesADamagedPart) {
  change_contents([](const HubRequest&, HubReply& reply) { reply.cut_after = 70000; });
  settings_.retries.max_attempts = 1;
  failure();
  hub_.change = nullptr;
  test::write_file(blob(), std::string(70000, 'x'));
  EXPECT_EQ(test::file_bytes(pull()), content_);
  // One that is longer than the file cannot be its start.
  fs::remove_all(settings_.cache_folder);
  fs::create_directories(settings_.cache_folder + "/models--user--model-GGUF/blobs");
  test::write_file(
      settings_.cache_folder + "/models--user--model-GGUF/blobs/" + sha256_hex(content_) + ".incomplete",
      std::string(400000, 'x'));
  EXPECT_EQ(test::file_bytes(pull()), content_);
}

TEST_F(HubDownload, DiscardsWhatHasAnotherHash) {
  change_contents([](const HubRequest&, HubReply& reply) { reply.body[1000] ^= 1; });
  EXPECT_THAT(failure(),
              HasSubstr("model-Q4_K_M.gguf: the download is damaged and was discarded: its sha256 is "));
  EXPECT_EQ(fs::file_size(blob()), 0u);
  EXPECT_FALSE(fs::exists(settings_.cache_folder + "/models--user--model-GGUF/refs/main"));
  hub_.change = nullptr;
  EXPECT_EQ(test::file_bytes(pull()), content_);
}

TEST_F(HubDownload, NoticesAHubThatLiesAboutSizes) {
  const auto listed_with = [&](uint64_t n_bytes) {
    hub_.change = [n_bytes](const HubRequest& request, HubReply& reply) {
      if (request.path.find("/tree/") == std::string::npos) return;
      reply.body = "[{\"type\":\"file\",\"path\":\"model-Q4_K_M.gguf\",\"size\":" + std::to_string(n_bytes) +
                   ",\"oid\":\"" + std::string(64, 'a') + "\"}]";
    };
  };
  listed_with(299999);
  EXPECT_EQ(failure(), "model-Q4_K_M.gguf: the hub lists 299999 bytes and sends 300000");
  listed_with(300001);
  EXPECT_EQ(failure(), "model-Q4_K_M.gguf: the hub lists 300001 bytes and sends 300000");
  listed_with(uint64_t{1} << 61);
  EXPECT_THAT(failure(), HasSubstr("free, needed 2147483648.00 GiB"));
  listed_with(UINT64_MAX);
  EXPECT_THAT(failure(), HasSubstr("the hub lists model-Q4_K_M.gguf with 18446744073709551615 bytes"));
  // Without a length, the bytes themselves show it.
  hub_.change = [&](const HubRequest& request, HubReply& reply) {
    if (!request.at_storage) return;
    reply.with_length = false;
    reply.body = content_ + "more";
  };
  EXPECT_EQ(failure(), "model-Q4_K_M.gguf: the server sends more than the 300000 bytes of the file");
  hub_.change = [&](const HubRequest& request, HubReply& reply) {
    if (!request.at_storage) return;
    reply = {.status = 200, .headers = {}, .body = content_.substr(0, 1000), .with_length = false};
  };
  EXPECT_EQ(failure(), "model-Q4_K_M.gguf: the connection ended after 1000 of 300000 bytes (tried 3 times)");
}

TEST_F(HubDownload, WaitsForABusyServer) {
  std::atomic<int> n{0};
  hub_.change = [&](const HubRequest&, HubReply& reply) {
    const int i = n++;
    if (i % 3 == 0)
      reply = {.status = i == 0 ? 429 : 503, .headers = {{"Retry-After", "0"}}, .body = "busy"};
  };
  EXPECT_EQ(test::file_bytes(pull()), content_);
  hub_.change = [](const HubRequest&, HubReply& reply) {
    reply = {.status = 503, .headers = {}, .body = ""};
  };
  EXPECT_THAT(failure(ErrorCode::io, "user/other"),
              HasSubstr("user/other: 127.0.0.1 answers with status 503 (tried 3 times)"));
  hub_.change = [](const HubRequest&, HubReply& reply) {
    reply = {.status = 429, .headers = {{"Retry-After", "3600"}}, .body = ""};
  };
  EXPECT_THAT(failure(ErrorCode::io, "user/other"),
              HasSubstr("(too many requests); it asks to wait 3600 seconds"));
}

TEST_F(HubDownload, GivesUpOnAServerThatStalls) {
  change_contents([](const HubRequest&, HubReply& reply) { reply.stall_after = 50000; });
  settings_.retries.max_attempts = 1;
  EXPECT_THAT(failure(), HasSubstr("127.0.0.1: no data for 1 seconds"));
  EXPECT_EQ(fs::file_size(blob()), 50000u);
}

TEST_F(HubDownload, SaysWhoMayNotReadWhat) {
  const auto with_status = [&](int status) {
    hub_.change = [status](const HubRequest&, HubReply& reply) {
      reply = {.status = status, .headers = {}, .body = ""};
    };
    return failure();
  };
  EXPECT_THAT(with_status(401), HasSubstr("a private one needs an access token (-hft, or HF_TOKEN)"));
  EXPECT_EQ(with_status(403),
            "user/model-GGUF: access is denied; accept the conditions of the repository at " + hub_.url() +
                "/user/model-GGUF");
  EXPECT_EQ(with_status(404), "user/model-GGUF: not found at 127.0.0.1");
  settings_.token = "hf_secret";
  EXPECT_EQ(with_status(401), "user/model-GGUF: the hub does not accept the access token");
}

TEST_F(HubDownload, TheTokenGoesToTheHubOnly) {
  settings_.token = "hf_secret";
  pull();
  size_t n_at_hub = 0, n_at_storage = 0;
  for (const HubRequest& request : hub_.requests()) {
    if (request.at_storage) {
      ++n_at_storage;
      EXPECT_EQ(request.header("authorization"), "");
    } else {
      ++n_at_hub;
      EXPECT_EQ(request.header("authorization"), "Bearer hf_secret");
    }
  }
  EXPECT_EQ(n_at_hub, 3u);
  EXPECT_EQ(n_at_storage, 1u);
}

TEST_F(HubDownload, DoesNotFollowRedirectsOutOfTheWeb) {
  const auto redirect_to = [&](const std::string& target) {
    hub_.change = [target](const HubRequest& request, HubReply& reply) {
      if (request.path.find("/resolve/") != std::string::npos) reply.headers["Location"] = target;
    };
    return failure();
  };
  EXPECT_THAT(redirect_to("http://192.0.2.1/x"), HasSubstr("http is not safe for another machine"));
  EXPECT_THAT(redirect_to("file:///etc/passwd"), HasSubstr("not a URL that can be downloaded"));
  EXPECT_THAT(redirect_to(hub_.url() + "/" + kRepo + "/resolve/main/" + kFile),
              HasSubstr("more than 10 redirects"));
}

TEST_F(HubDownload, RefusesNamesThatLeaveTheFolder) {
  for (const std::string name :
       {"../../x.gguf", "/etc/x.gguf", "a/../../x.gguf", "a\\\\..\\\\x.gguf", "x\\u0000.gguf"}) {
    hub_.change = [name](const HubRequest& request, HubReply& reply) {
      if (request.path.find("/tree/") == std::string::npos) return;
      reply.body = "[{\"type\":\"file\",\"path\":\"" + name + "\",\"size\":1,\"oid\":\"" +
                   std::string(40, 'a') + "\"}]";
    };
    EXPECT_THAT(failure(), HasSubstr("which is not a path inside a repository")) << name;
  }
  hub_.change = [](const HubRequest& request, HubReply& reply) {
    if (request.path.find("/tree/") == std::string::npos) return;
    reply.body = R"([{"type":"file","path":"m.gguf","size":1,"oid":"../../../x"}])";
  };
  EXPECT_THAT(failure(), HasSubstr("the hub lists m.gguf without its size and hash"));
  hub_.change = [](const HubRequest& request, HubReply& reply) {
    if (request.path.find("/revision/") != std::string::npos) reply.body = R"({"sha":"../../../x"})";
  };
  EXPECT_THAT(failure(), HasSubstr("the hub's answer names no commit"));
  EXPECT_FALSE(fs::exists(settings_.cache_folder));
}

TEST_F(HubDownload, RefusesListingsThatAreNone) {
  const auto listing = [&](const std::string& body, const std::string& link = "") {
    hub_.change = [=](const HubRequest& request, HubReply& reply) {
      if (request.path.find("/tree/") == std::string::npos) return;
      reply.body = body;
      if (!link.empty()) reply.headers["Link"] = "<" + link + ">; rel=\"next\"";
    };
    return failure();
  };
  EXPECT_THAT(listing("<html>Sign in</html>"),
              HasSubstr("the hub's answer is not JSON; it starts with '<html>Sign in"));
  EXPECT_THAT(listing("{\"a\":1}"), HasSubstr("the hub's answer is not a list of files"));
  EXPECT_THAT(listing("[1, null, {\"type\":7}]"), HasSubstr("the repository has no model in GGUF format"));
  EXPECT_THAT(listing(std::string(100000, '[')), HasSubstr("is not JSON"));
  EXPECT_THAT(listing("[]", "https://example.org/next"), HasSubstr("goes on at another host"));
  EXPECT_THAT(listing("[]", hub_.url() + "/api/models/user/model-GGUF/tree/" +
                                "0123456789abcdef0123456789abcdef01234567?recursive=true"),
              HasSubstr("the hub's list of files does not end"));
}

TEST_F(HubDownload, AnEndlessListingEnds) {
  std::atomic<int> n{0};
  hub_.change = [&](const HubRequest& request, HubReply& reply) {
    if (request.path.find("/tree/") == std::string::npos) return;
    reply.body = "[]";
    reply.headers["Link"] =
        "<" + hub_.url() + request.path + "?cursor=" + std::to_string(++n) + ">; rel=\"next\"";
  };
  EXPECT_THAT(failure(), HasSubstr("the hub's list of files does not end"));
  EXPECT_LT(n, 1100);
}

TEST_F(HubDownload, UsesTheCopyWhenTheHubIsAway) {
  const std::string path = pull();
  hub_.change = [](const HubRequest&, HubReply& reply) {
    reply = {.status = 503, .headers = {}, .body = ""};
  };
  testing::internal::CaptureStderr();
  EXPECT_EQ(pull(), path);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("status 503; using user/model-GGUF:Q4_K_M as it was downloaded before"));
  settings_.endpoint = "http://127.0.0.1:1";  // nobody listens
  EXPECT_EQ(pull(), path);
}

TEST_F(HubDownload, OfflineAsksNobody) {
  settings_.offline = true;
  EXPECT_EQ(failure(), "user/model-GGUF: not downloaded, and --offline forbids to ask the hub");
  EXPECT_TRUE(hub_.requests().empty());
  settings_.offline = false;
  const std::string path = pull();
  settings_.offline = true;
  const size_t n = hub_.requests().size();
  EXPECT_EQ(pull(), path);
  EXPECT_EQ(pull(std::string(kRepo) + ":q4_k_m"), path);
  EXPECT_THAT(failure(ErrorCode::io, std::string(kRepo) + ":Q8_0"), HasSubstr("; downloaded is Q4_K_M"));
  EXPECT_EQ(hub_.requests().size(), n);
}

TEST_F(HubDownload, TwoAtOnceDownloadOnce) {
  change_contents([](const HubRequest&, HubReply& reply) { reply.delay_ms = 20; });
  std::vector<std::thread> threads;
  std::atomic<int> n_right{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { n_right += test::file_bytes(pull()) == content_ ? 1 : 0; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(n_right, 4);
  EXPECT_EQ(hub_.count("/storage/"), 1u);
}

// As a full disk: the limit makes the write fail in the middle.
TEST_F(HubDownload, AFullDiskKeepsWhatThereIs) {
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 100000;
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string message = failure();
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(message, HasSubstr("model-Q4_K_M.gguf: cannot write "));
  EXPECT_THAT(message, HasSubstr("File too large; 97.7 KiB are kept, and the same command continues"));
  EXPECT_EQ(fs::file_size(blob()), 100000u);
  EXPECT_EQ(test::file_bytes(pull()), content_);
}

TEST_F(HubDownload, NamesAFolderThatCannotBeWritten) {
  test::write_file(folder_.path("file"), "");
  settings_.cache_folder = folder_.path("file") + "/hub";  // fails for root too
  EXPECT_THAT(failure(), HasSubstr("/file/hub/models--user--model-GGUF"));
}

TEST_F(HubDownload, DownloadsFromAnyUrl) {
  hub_.redirects = false;
  settings_.endpoint = "https://example.org";  // so that the URL is no hub's
  settings_.token = "hf_secret";
  const std::string url = hub_.url() + "/" + kRepo + "/resolve/main/" + kFile + "?download=true";
  hub_.change = [](const HubRequest&, HubReply& reply) { reply.cut_after = 100000; };
  settings_.retries.max_attempts = 1;
  EXPECT_THROW(pull_from_url(url), Error);
  hub_.change = nullptr;
  const std::string path = pull_from_url(url);
  EXPECT_EQ(test::file_bytes(path), content_);
  EXPECT_TRUE(path.starts_with(settings_.url_folder + "/127.0.0.1_")) << path;
  EXPECT_EQ(hub_.requests()[1].header("range"), "bytes=100000-");
  EXPECT_EQ(hub_.requests()[1].header("if-range"), "\"" + sha256_hex(content_) + "\"");
  for (const HubRequest& request : hub_.requests()) EXPECT_EQ(request.header("authorization"), "");
  EXPECT_EQ(pull_from_url(url), path);
  EXPECT_EQ(hub_.requests().size(), 2u);
}

TEST_F(HubDownload, AUrlWhoseFileChangedStartsAgain) {
  hub_.redirects = false;
  settings_.endpoint = "https://example.org";
  const std::string url = hub_.url() + "/" + kRepo + "/resolve/main/" + kFile;
  hub_.change = [](const HubRequest&, HubReply& reply) { reply.cut_after = 100000; };
  settings_.retries.max_attempts = 1;
  EXPECT_THROW(pull_from_url(url), Error);
  hub_.change = nullptr;
  const std::string newer = random_bytes(200000, 2);
  hub_.add(kRepo, kFile, newer);
  EXPECT_EQ(test::file_bytes(pull_from_url(url)), newer);
}

TEST_F(HubDownload, UrlsOfSplitModelsBringAllParts) {
  hub_.redirects = false;
  settings_.endpoint = "https://example.org";
  for (int i = 1; i <= 3; ++i) {
    hub_.add(kRepo, "m-0000" + std::to_string(i) + "-of-00003.gguf", "part " + std::to_string(i));
  }
  const std::string path = pull_from_url(hub_.url() + "/" + kRepo + "/resolve/main/m-00001-of-00003.gguf");
  EXPECT_EQ(test::file_bytes(path), "part 1");
  EXPECT_EQ(test::file_bytes(fs::path(path).parent_path().string() + "/m-00003-of-00003.gguf"), "part 3");
}

TEST_F(HubDownload, ListsAndRemoves) {
  hub_.add(kRepo, "model-Q8_0.gguf", random_bytes(5000, 2));
  hub_.add(kRepo, "config.json", "{}", false);
  pull();
  pull(std::string(kRepo) + ":Q8_0");
  hub_.set_commit(kRepo, std::string(40, 'b'));  // the same blob in a second snapshot
  pull();
  Downloads downloads = list_downloads(settings_);
  ASSERT_EQ(downloads.models.size(), 2u);
  EXPECT_EQ(downloads.models[0].name, "user/model-GGUF:Q4_K_M");
  EXPECT_EQ(downloads.models[0].n_bytes, content_.size());
  EXPECT_EQ(downloads.models[1].name, "user/model-GGUF:Q8_0");
  EXPECT_TRUE(matching(downloads, "user/other").empty());

  EXPECT_EQ(remove_model(settings_, matching(downloads, "user/model-gguf:q4_k_m").at(0)), content_.size());
  EXPECT_EQ(remove_rest(settings_, kRepo), 0u);
  downloads = list_downloads(settings_);
  ASSERT_EQ(downloads.models.size(), 1u);
  EXPECT_EQ(test::file_bytes(downloads.models[0].paths[0]).size(), 5000u);

  EXPECT_EQ(remove_model(settings_, downloads.models[0]), 5000u);
  remove_rest(settings_, kRepo);
  EXPECT_TRUE(list_downloads(settings_).models.empty());
  EXPECT_FALSE(fs::exists(HubCache(settings_.cache_folder).repo_folder(kRepo)));
}

TEST_F(HubDownload, RemovesNoBlobThatAnotherFileUses) {
  hub_.add(kRepo, "copy-Q8_0.gguf", content_);
  pull();
  const std::string other = pull(std::string(kRepo) + ":Q8_0");
  EXPECT_EQ(remove_model(settings_, matching(list_downloads(settings_), "user/model-GGUF:Q4_K_M").at(0)), 0u);
  EXPECT_EQ(test::file_bytes(other), content_);
}

}  // namespace
}  // namespace tandem::tools
