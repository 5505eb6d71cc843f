//! Titles, languages and file names: whatever they hold, one key is one file, and nothing else happens.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use unicode_normalization::UnicodeNormalization;

use crate::harness::{Queue, text};

/// Asks for all, has them made in one tick, and makes sure that each title has a file of its own with its own content.
#[track_caller]
fn export_all(queue: &Queue, titles: &[&str]) -> Vec<Value> {
    for title in titles {
        assert_eq!(queue.request("ok", title)["state"], "queued", "{title:?}");
    }
    queue.dispatch().code(0).silent();
    let answers: Vec<Value> = titles.iter().map(|title| queue.status("ok", title)).collect();
    for (title, answer) in titles.iter().zip(&answers) {
        assert_eq!(answer["state"], "ready", "{answer}");
        let content = fs::read_to_string(text(&answer["path"])).expect("the path opens");
        assert_eq!(content, format!("a good book: {}\n", title.nfc().collect::<String>()));
        assert_flat(queue, answer);
    }
    let names: BTreeSet<String> = answers.iter().map(|answer| text(&answer["filename"])).collect();
    assert_eq!(names.len(), titles.len(), "two titles share a file: {names:?}");
    assert_eq!(queue.published().len(), titles.len());
    answers
}

/// The file lies directly in its shard, under a name that every file system takes.
#[track_caller]
fn assert_flat(queue: &Queue, answer: &Value) {
    let (path, name) = (text(&answer["path"]), text(&answer["filename"]));
    let hash = name.rsplit_once('.').and_then(|(stem, _)| stem.rsplit_once('-')).expect("a hash").1;
    assert_eq!(Path::new(&path), queue.path("cache").join(&hash[..2]).join(&name));
    assert!(name.len() <= 255 - 32, "no room for a suffix: {name}");
    assert!(!name.contains('/') && !name.starts_with(['.', '-']), "{name}");
}

/// The title is refused as usage, by every verb, and nothing is stored.
#[track_caller]
fn assert_refused(queue: &Queue, title: &str) {
    for verb in ["request", "status", "explain"] {
        let said = queue.run([verb, "--", title]).code(2);
        assert_eq!(said.out, "", "{title:?}");
        assert_eq!(said.err.lines().count(), 1, "{:?}", said.err);
        assert!(said.err.starts_with("export-queue: the title "), "{:?}", said.err);
    }
    assert!(!queue.path("state/queue.db").exists() || queue.sql("SELECT id FROM jobs").is_empty());
}

/// What lies directly in a directory.
fn names_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a directory").flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Nothing lies in the queue's directories but what the program itself makes there.
#[track_caller]
fn assert_nothing_strange(queue: &Queue) {
    let is_known = |name: &String| {
        let is_shard = name.len() == 2 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_shard || [".work", ".lock", ".export-queue"].contains(&name.as_str())
    };
    let strange: Vec<String> = names_in(&queue.path("cache")).into_iter().filter(|name| !is_known(name)).collect();
    assert!(strange.is_empty(), "in the cache: {strange:?}");
    let known = ["STARTS", "books", "cache", "config.toml", "state"];
    assert_eq!(names_in(&queue.path("")), known);
}

// CASES 28
#[test]
fn a_title_with_slashes_and_dots_is_one_flat_file() {
    let queue = Queue::new();
    export_all(&queue, &["A/B", "Faust/Kapitel 1", "/", "a//b", ".", "..", ".hidden", "x", "TCP/IP/", "\\"]);
    assert_nothing_strange(&queue);
    queue.assert_quiet();
}

// CASES 28
#[test]
fn an_empty_or_blank_title_is_refused_and_stores_nothing() {
    let queue = Queue::new();
    for title in ["", " ", "   ", "\u{a0}\u{3000}"] {
        assert_refused(&queue, title);
    }
    assert!(queue.run(["--json", "request", "--", " "]).code(2).json()["error"]["code"] == 2);
    assert_refused(&queue, "");
    assert!(!queue.path("state").exists(), "a refused call made something");
}

// CASES 29
#[test]
fn titles_that_look_alike_have_files_of_their_own() {
    let queue = Queue::new();
    let titles = [
        "A/B",
        "A_B",
        "A-B",
        "a?",
        "a#",
        "x (1/2)",
        "x (2/2)",
        "é",
        "e",
        "A",
        "A.epub",
        "A.txt",
        "A.",
        " A",
        ".work",
        ".lock",
        ".export-queue",
        "3f",
    ];
    let answers = export_all(&queue, &titles);
    // The name of another's file is a title like any other.
    let (name, path) = (text(&answers[0]["filename"]), text(&answers[0]["path"]));
    let second = [name.as_str(), path.as_str()];
    for title in second {
        queue.request("ok", title);
    }
    queue.dispatch().code(0).silent();
    for title in second {
        let content = fs::read_to_string(text(&queue.status("ok", title)["path"])).expect("the path opens");
        assert_eq!(content, format!("a good book: {title}\n"));
    }
    assert_eq!(queue.published().len(), titles.len() + second.len());
    assert_nothing_strange(&queue);
    queue.assert_quiet();
}

// CASES 29
#[test]
fn composed_and_decomposed_letters_are_one_title() {
    let queue = Queue::new();
    let composed = queue.request("ok", "caf\u{e9}");
    let decomposed = queue.request("ok", "cafe\u{301}");
    assert_eq!(composed["id"], decomposed["id"]);
    assert_eq!(decomposed["title"], "caf\u{e9}");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.scratch("STARTS").len(), 1);
    queue.assert_quiet();
}

// CASES 29
#[test]
fn format_language_and_font_are_part_of_the_key() {
    let queue = Queue::new();
    let variants = [["ok", "en", "default"], ["ok", "de", "default"], ["ok", "en", "mukta"], ["args", "en", "default"]];
    let select =
        |[format, lang, font]: [&'static str; 3]| ["--format", format, "--lang", lang, "--font", font, "--", "A"];
    for variant in variants {
        queue.run(["request"].iter().chain(&select(variant))).code(3);
    }
    queue.dispatch().code(0).silent();
    let mut paths = BTreeSet::new();
    for variant in variants {
        let answer = queue.run(["--json", "status"].iter().chain(&select(variant))).code(0).json();
        assert_eq!([&answer["format"], &answer["lang"], &answer["font"]], variant);
        paths.insert(text(&answer["path"]));
    }
    assert_eq!(paths.len(), variants.len());
    queue.assert_quiet();
}

// CASES 30
#[test]
fn long_titles_are_exported_and_do_not_collide() {
    let queue = Queue::new();
    let ascii = |bytes: usize| "a".repeat(bytes);
    let titles: Vec<String> = vec![
        ascii(245),
        ascii(250),
        ascii(255),
        ascii(256),
        ascii(1000),
        ascii(1024),
        "я".repeat(128),
        "語".repeat(90),
        "語".repeat(341),
        format!("{}я{}", ascii(79), ascii(200)),
        format!("{}語{}", ascii(78), ascii(200)),
        format!("{}1", ascii(250)),
        format!("{}2", ascii(250)),
        format!("{}.part", ascii(250)),
        "😀".repeat(63),
    ];
    export_all(&queue, &titles.iter().map(String::as_str).collect::<Vec<_>>());
    queue.assert_quiet();
}

// CASES 30
#[test]
fn a_title_above_the_maximum_is_refused_when_it_is_asked_for() {
    let queue = Queue::new();
    for title in ["a".repeat(1025), "語".repeat(342), "a".repeat(10_000), "a".repeat(100_000)] {
        assert_refused(&queue, &title);
    }
    assert!(!queue.path("state").exists(), "a refused call made something");
}

// CASES 31
#[test]
fn a_title_reaches_the_exporter_as_one_argument_byte_for_byte() {
    let queue = Queue::new();
    let pwned = queue.path("pwned");
    let touch = [format!("$(touch {})", pwned.display()), format!("`touch {}`", pwned.display())];
    let redirect = format!("a > {}; touch {0}", pwned.display());
    let titles = [
        "Rock 'n' Roll",
        "a\"b",
        &touch[0],
        &touch[1],
        &redirect,
        "; exit 7",
        "a\\b",
        "* ? [x]",
        "{title}",
        "{output}",
        "{{title}}",
        "%t %s %25",
        "$HOME ${HOME}",
        "--version",
        "-o",
        "--",
        "a=b",
        "'",
        "<b>&amp;</b>",
        "~root",
        "a  b ",
    ];
    for title in titles {
        queue.request("args", title);
        queue.dispatch().code(0).silent();
        assert_eq!(queue.state("args", title), "ready", "{title}");
        assert_eq!(fs::read(queue.path("ARGS")).expect("what arrived"), title.as_bytes(), "{title}");
    }
    assert!(!pwned.exists(), "a title was run by a shell");
    queue.assert_quiet();
}

// CASES 39
#[test]
fn a_title_that_is_a_path_writes_only_into_the_cache() {
    let queue = Queue::new();
    let aim = format!("export-queue-pwned-{}", std::process::id());
    let titles = [
        format!("../../../../../../../../tmp/{aim}"),
        format!("/tmp/{aim}"),
        format!("..%2f..%2f{aim}"),
        format!("a/../../{aim}"),
        format!("..\\..\\{aim}"),
        format!("file:///tmp/{aim}"),
    ];
    export_all(&queue, &titles.iter().map(String::as_str).collect::<Vec<_>>());
    assert_nothing_strange(&queue);
    queue.run(["sweep", "--all", "--force"]).code(0);
    assert!(queue.published().is_empty());
    for place in ["/tmp", "/", "/etc"] {
        let made = names_in(Path::new(place)).into_iter().filter(|name| name.contains(&aim)).collect::<Vec<_>>();
        assert!(made.is_empty(), "{place}: {made:?}");
    }
    assert_nothing_strange(&queue);
    queue.assert_quiet();
}

// CASES 39
#[test]
fn a_language_font_or_format_that_is_a_path_is_refused() {
    let queue = Queue::new();
    for flag in ["--lang", "--font", "--format"] {
        for value in ["../../x", "/etc/x", "a/b", "..", ".", "-x", "", " ", "a\nb", "é"] {
            for verb in ["request", "status"] {
                let flag_and_value = format!("{flag}={value}");
                let said = queue.run([verb, &flag_and_value, "--", "A"]).code(2);
                assert_eq!((said.out.as_str(), said.err.lines().count()), ("", 1), "{flag_and_value}: {}", said.err);
            }
        }
    }
    assert!(!queue.path("state").exists(), "a refused call made something");
}

// CASES 39
#[test]
fn a_file_name_of_somebody_else_is_neither_read_nor_deleted() {
    let queue = Queue::new();
    queue.request("ok", "A");
    queue.dispatch().code(0).silent();
    let foreign = queue.path("cache/3f/../../books/foreign.txt");
    fs::create_dir_all(queue.path("cache/3f")).expect("a shard");
    fs::write(&foreign, "not ours").expect("a file");
    for name in ["../../books/foreign.txt", "/etc/passwd", "..", "foreign.txt"] {
        let said = queue.run(["status", "--filename", name]).code(6);
        assert!(!said.out.contains("ready"), "{}", said.out);
        queue.run(["fetch", "--filename", name, "--output", "-"]).code(6);
    }
    queue.run(["sweep", "--all", "--force"]).code(0);
    assert_eq!(fs::read_to_string(&foreign).expect("it is still there"), "not ours");
    queue.assert_quiet();
}

// CASES 51
#[test]
fn by_default_blanks_and_underscores_are_what_they_are() {
    let queue = Queue::new();
    let answers = export_all(&queue, &["War and Peace", "War_and_Peace", " War  and_Peace ", "war and Peace"]);
    assert_eq!(answers[2]["title"], " War  and_Peace ");
    queue.assert_quiet();
}

// CASES 51
#[test]
fn under_mediawiki_rules_all_spellings_of_a_title_are_one_export() {
    let queue = Queue::new();
    queue.reconfigure("format = \"ok\"\n", "format = \"ok\"\ntitle_rules = \"mediawiki\"\n");
    fs::write(queue.path("S"), "0").expect("the seconds");
    let spellings =
        ["War and Peace", "War_and_Peace", " War  and_Peace ", "__War_and Peace_", "War and\u{200e} Peace\u{200f}"];
    let ids: BTreeSet<String> = spellings.iter().map(|title| queue.request("mark", title)["id"].to_string()).collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
    let other = queue.request("mark", "war and Peace");
    assert!(!ids.contains(&other["id"].to_string()), "the first letter counts");
    queue.dispatch().code(0).silent();
    for spelling in spellings {
        let answer = queue.status("mark", spelling);
        assert_eq!((&answer["state"], &answer["title"]), (&"ready".into(), &"War and Peace".into()));
    }
    let starts = queue.scratch("LOG").iter().filter(|line| line.starts_with("start War and Peace ")).count();
    assert_eq!(starts, 1, "{:?}", queue.scratch("LOG"));
    assert_refused_under_mediawiki(&queue);
    queue.assert_quiet();
}

#[track_caller]
fn assert_refused_under_mediawiki(queue: &Queue) {
    for title in ["_", "__ _", "\u{200e}"] {
        queue.run(["request", "--", title]).code(2);
    }
}

/// Arguments, the last of them these bytes.
fn with_bytes<'a>(args: &[&'a str], bytes: &'a [u8]) -> Vec<&'a OsStr> {
    args.iter().map(|arg| OsStr::new(*arg)).chain([OsStr::from_bytes(bytes)]).collect()
}

// CASES 53
#[test]
fn arguments_that_are_not_utf_8_are_refused_with_a_readable_line() {
    let queue = Queue::new();
    for bytes in [&b"\xff"[..], b"caf\xe9", b"--\xff", b"a\xed\xa0\x80"] {
        for verb in ["request", "status", "explain", "history", "cancel", "log", "\u{e9}"] {
            for separator in [&[][..], &["--"]] {
                let said = queue.run(with_bytes(&[&[verb], separator].concat(), bytes)).code(2);
                assert!(said.out.is_empty() && !said.err.trim().is_empty(), "{said:?}");
            }
        }
        for flag in ["--format", "--lang", "--font", "--id", "--filename", "--wait"] {
            queue.run(with_bytes(&["status", "A", flag], bytes)).code(2);
        }
        let said = queue.run(with_bytes(&["--json", "request", "--"], bytes)).code(2);
        assert_eq!(said.json()["error"]["code"], 2);
    }
    assert!(!queue.path("state").exists(), "a refused call made something");
}

// CASES 53
#[test]
fn paths_and_variables_that_are_not_utf_8_are_no_reason_to_panic() {
    let queue = Queue::new();
    let bad = OsStr::from_bytes(b"/tmp/\xff/config.toml");
    let missing = crate::harness::call(queue.command(["status", "A"]).arg("--config").arg(bad));
    assert!([2, 78].contains(&missing.code), "{missing:?}");
    let mut named = std::process::Command::new(crate::harness::PROGRAM);
    named.args(["status", "A"]).env("EXPORT_QUEUE_CONFIG", bad).stdin(Stdio::null());
    crate::harness::call(&mut named).code(78);
    let mut overridden = queue.command(["status", "A"]);
    overridden.env("EXPORT_QUEUE__DEFAULTS__LANG", OsStr::from_bytes(b"\xff"));
    crate::harness::call(&mut overridden).code(78);
    let mut strange = queue.command(["--json", "--exit-zero", "request", "A"]);
    strange.env(OsStr::from_bytes(b"N\xff"), OsStr::from_bytes(b"\xff")).env("TZ", OsStr::from_bytes(b"\xff"));
    strange.env("LANG", OsStr::from_bytes(b"\xff")).env("COLUMNS", OsStr::from_bytes(b"\xff"));
    assert_eq!(crate::harness::call(&mut strange).code(0).json()["state"], "queued");
    // A worker lives in such an environment too, and finds its file.
    let mut tick = queue.command(["dispatch", "--wait"]);
    tick.env(OsStr::from_bytes(b"N\xff"), OsStr::from_bytes(b"\xff")).env("TZ", OsStr::from_bytes(b"\xff"));
    crate::harness::call(&mut tick).code(0).silent();
    assert_eq!(queue.state("ok", "A"), "ready");
    queue.assert_quiet();
}

// CASES 53
#[test]
fn a_sweep_passes_over_names_that_are_not_utf_8() {
    let queue = Queue::new();
    queue.request("ok", "A");
    queue.dispatch().code(0).silent();
    let shard = queue.published()[0].parent().expect("a shard").to_owned();
    let strange = [shard.join(OsStr::from_bytes(b"\xff")), shard.join(OsStr::from_bytes(b"caf\xe9-en-default.txt"))];
    for path in &strange {
        fs::write(path, "not ours").expect("a file");
    }
    fs::create_dir(queue.path("cache").join(OsStr::from_bytes(b"\xfe"))).expect("a directory");
    let said = queue.run(["--json", "sweep", "--all", "--force"]).code(0);
    assert_eq!(said.json()["deleted"], 1);
    assert!(strange.iter().all(|path| path.exists()), "the sweep deleted what is not ours");
    queue.dispatch().code(0).silent();
    queue.assert_quiet();
}

// CASES 91
#[test]
fn a_title_with_control_characters_is_refused_and_stores_nothing() {
    let queue = Queue::new();
    for title in
        ["a\nb", "a\rb", "a\tb", "\u{1b}[31mred", "a\u{2028}b", "a\u{2029}b", "trailing\n", "\u{7f}", "a\u{85}b"]
    {
        assert_refused(&queue, title);
    }
    assert!(!queue.path("state").exists(), "a refused call made something");
}

// CASES 91
#[test]
fn one_record_is_one_line_whatever_the_title_holds() {
    let queue = Queue::new();
    let title = "a\u{202e}b\u{2066}c \u{200b}\u{feff} \"quoted\" \\n | \u{ad}";
    assert_eq!(queue.request("code1", title)["title"], title);
    queue.dispatch().code(0).silent();
    for verb in [&["list"][..], &["history"], &["status", "--format", "code1", "--", title]] {
        let json = queue.run([&["--json", "--exit-zero"], verb].concat()).code(0);
        assert_eq!(json.json()["title"], title, "{verb:?}");
        let said = queue.run([&["--exit-zero"], verb].concat()).code(0);
        let hostile =
            |letter: char| ('\u{202a}'..='\u{202e}').contains(&letter) || ('\u{2066}'..='\u{2069}').contains(&letter);
        assert!(!said.out.contains(hostile), "{:?}", said.out);
    }
    queue.assert_quiet();
}

// CASES 91
#[test]
fn a_title_file_may_end_with_one_newline_and_no_more() {
    let queue = Queue::new();
    let from_file = |content: &[u8], code: i32| {
        fs::write(queue.path("books/title"), content).expect("a file");
        let path = queue.path("books/title");
        queue.run([OsStr::new("--json"), OsStr::new("status"), OsStr::new("--title-file"), path.as_os_str()]).code(code)
    };
    assert_eq!(from_file(b"A\n", 6).json()["title"], "A");
    assert_eq!(from_file(b"A", 6).json()["title"], "A");
    assert_eq!(from_file(b"--version\n", 6).json()["title"], "--version");
    for refused in [&b"A\n\n"[..], b"A\r\n", b"A\nB\n", b"", b"\n", b"\xff\n"] {
        assert_eq!(from_file(refused, 2).json()["error"]["code"], 2);
    }
    queue.run(["status", "--title-file", "/nonexistent/title"]).code(2);
}

// CASES 92
#[test]
fn a_title_with_nul_is_refused_however_it_comes() {
    let queue = Queue::new();
    let mut child = queue
        .command(["request", "--title-file", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    child.stdin.take().expect("its input").write_all(b"a\0b\n").expect("it reads");
    let output = child.wait_with_output().expect("its output");
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("U+0000"), "{message}");
    assert!(!queue.path("state").exists(), "a refused call made something");
}

// CASES 92
#[test]
fn a_reason_with_nul_and_broken_utf_8_is_recorded_cleaned() {
    let queue = Queue::new();
    let mut config = queue.base_config();
    config.push_str(
        "[format.dirty]\nextension = \"txt\"\n\
         command = [\"sh\", \"-c\", '''printf 'a\\0b\\377\\033[31mc' >&2; exit 1''', \"sh\", \"{output}\"]\n",
    );
    queue.configure(&config);
    queue.request("dirty", "A");
    queue.dispatch().code(0).silent();
    let status = queue.status("dirty", "A");
    assert_eq!(status["state"], "failed_unknown");
    assert_eq!(status["detail"], "exit 1: a\u{fffd}b\u{fffd}\u{fffd}[31mc");
    assert_eq!(queue.sql("SELECT count(*) FROM jobs WHERE instr(CAST(detail AS BLOB), x'00') > 0"), ["0"]);
    let log = queue.run(["log", "--format", "dirty", "A"]).code(0);
    assert_eq!(log.out, "a\u{fffd}b\u{fffd}\u{fffd}[31mc\n");
    queue.assert_quiet();
}

// CASES 94
#[test]
fn no_locale_has_a_say_in_titles_and_formats() {
    let mut queue = Queue::new();
    let titles = ["INSTITUT", "institut", "İstanbul", "istanbul", "ıı", "ii", "ß", "SS", "ﬁ", "fi"];
    queue.set("LC_ALL", "tr_TR.UTF-8");
    let asked: Vec<Value> = titles.iter().map(|title| queue.request("ok", title)).collect();
    queue.set("LC_ALL", "C");
    queue.dispatch().code(0).silent();
    for (title, asked) in titles.iter().zip(&asked) {
        let answer = queue.status("ok", title);
        assert_eq!((&answer["state"], &answer["title"]), (&"ready".into(), &(*title).into()));
        assert_eq!(answer["filename"], asked["filename"]);
    }
    assert_eq!(queue.published().len(), titles.len());
    // A format is matched by ASCII letters: DIE9 and ASCII have the I that Turkish casing breaks.
    for locale in ["tr_TR.UTF-8", "C", "C.UTF-8"] {
        queue.set("LC_ALL", locale);
        assert_eq!(queue.request("ASCII", "A")["format"], "ascii");
        assert_eq!(queue.request("Die9", "A")["format"], "die9");
        queue.run(["status", "--format", "dıe9", "A"]).code(2);
        queue.run(["status", "--format", "ASCİİ", "A"]).code(2);
    }
    assert_eq!(queue.sql("SELECT count(*) FROM jobs"), ["2"]);
    queue.assert_quiet();
}

// CASES 95: neither vfat nor casefold is in the kernels that tests run on, so the names themselves are looked at.
#[test]
fn names_differ_also_where_letter_case_and_composition_do_not_count() {
    let queue = Queue::new();
    let titles = ["Mass", "mass", "MASS", "Ma\u{df}", "\u{c9}t\u{e9}", "\u{e9}t\u{e9}", "MA\u{df}", "A ", "A"];
    let answers = export_all(&queue, &titles);
    let folded = |answer: &Value| text(&answer["filename"]).nfd().collect::<String>().to_uppercase().to_lowercase();
    let names: BTreeSet<String> = answers.iter().map(folded).collect();
    assert_eq!(names.len(), titles.len(), "{names:?}");
    queue.assert_quiet();
}
