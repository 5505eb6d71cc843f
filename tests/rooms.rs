//! The shape of the source: the table of rooms in `src/lib.rs` is the law, and this is its court.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

/// The source.
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src");

/// The levels of the table, in order.
const LEVELS: &[&str] = &["words", "rules", "hands", "flows", "faces"];

/// Levels whose rooms may use each other: words build on words, a flow may call a flow, faces share how they print.
const SOCIABLE: &[&str] = &["words", "flows", "faces"];

/// Hands that use another hand's types, and why.
const EXCEPTIONS: &[(&str, &str, &str)] =
    &[("cache", "lock", "publishing and sweeping take the guard that proves the lock; cache never takes a slot")];

/// The longest function and the longest file, in lines; a file's own tests aside.
const LONGEST_FUNCTION: usize = 60;
const LONGEST_FILE: usize = 650;

/// A source file without its own tests.
struct Source {
    path: PathBuf,
    lines: Vec<String>,
}

impl Source {
    /// The room that it belongs to: the first component of its path.
    fn room(&self) -> String {
        let inside = self.path.strip_prefix(SOURCE).expect("a source file").with_extension("");
        inside.components().next().expect("a name").as_os_str().to_string_lossy().into_owned()
    }

    fn code(&self) -> String {
        self.lines.join("\n")
    }

    fn place(&self, line: usize) -> String {
        format!("src/{}:{}", self.path.strip_prefix(SOURCE).expect("a source file").display(), line + 1)
    }
}

/// Every file of `src`, without what is only there for its own tests and without comments of whole lines.
fn sources() -> Vec<Source> {
    let files = walkdir::WalkDir::new(SOURCE).sort_by_file_name().into_iter().map(|entry| entry.expect("a source"));
    let is_rust = |path: &Path| path.extension() == Some("rs".as_ref());
    let is_test = |path: &Path| path.file_stem().is_some_and(|name| name.to_string_lossy().ends_with("tests"));
    let paths = files.map(walkdir::DirEntry::into_path).filter(|path| is_rust(path) && !is_test(path));
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a source file");
        let lines = text.lines().take_while(|line| *line != "#[cfg(test)]").map(|line| {
            let is_comment = line.trim_start().starts_with("//");
            if is_comment { String::new() } else { line.to_owned() }
        });
        Source { lines: lines.collect(), path }
    };
    let sources: Vec<Source> = paths.map(read).collect();
    assert!(sources.len() > 20, "the source was not found");
    sources
}

/// The table of `src/lib.rs`: each room and its level.
fn rooms() -> BTreeMap<String, usize> {
    let lib = fs::read_to_string(Path::new(SOURCE).join("lib.rs")).expect("lib.rs");
    let name = Regex::new(r"\[`([a-z_]+)`\]").expect("a pattern");
    let mut rooms = BTreeMap::new();
    for (level, word) in LEVELS.iter().enumerate() {
        let row = lib.lines().find(|line| line.starts_with(&format!("//! | {word} |"))).expect("a row of the table");
        for found in name.captures_iter(row) {
            let before = rooms.insert(found[1].to_owned(), level);
            assert!(before.is_none(), "{} stands twice in the table", &found[1]);
        }
    }
    rooms
}

fn may_use(rooms: &BTreeMap<String, usize>, user: &str, used: &str) -> bool {
    let (own, other) = (rooms[user], rooms[used]);
    let is_excepted = EXCEPTIONS.iter().any(|(a, b, _)| (*a, *b) == (user, used));
    user == used || other < own || (other == own && SOCIABLE.contains(&LEVELS[own])) || is_excepted
}

#[test]
fn every_module_stands_in_the_table_of_rooms() {
    let rooms = rooms();
    let lib = fs::read_to_string(Path::new(SOURCE).join("lib.rs")).expect("lib.rs");
    let declared: Vec<&str> = lib.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')).collect();
    let listed: Vec<&str> = rooms.keys().map(String::as_str).collect();
    assert_eq!(declared, listed, "`pub mod` lines and the table of src/lib.rs differ");
}

#[test]
fn a_room_uses_only_rooms_of_the_levels_before_it() {
    let rooms = rooms();
    let used = Regex::new(r"\bcrate::(\{|[a-z_]+)").expect("a pattern");
    let mut seen = Vec::new();
    let mut offenders = Vec::new();
    for source in sources().iter().filter(|source| !["lib", "main"].contains(&source.room().as_str())) {
        let user = source.room();
        for (number, line) in source.lines.iter().enumerate() {
            for found in used.captures_iter(line) {
                let Some(other) = rooms.get_key_value(&found[1]).map(|(name, _)| name.as_str()) else {
                    offenders.push(format!("{}: name a room: {}", source.place(number), line.trim()));
                    continue;
                };
                seen.push((user.clone(), other.to_owned()));
                if !may_use(&rooms, &user, other) {
                    let levels = (LEVELS[rooms[&user]], LEVELS[rooms[other]]);
                    offenders.push(format!(
                        "{}: {user} ({}) uses {other} ({})",
                        source.place(number),
                        levels.0,
                        levels.1
                    ));
                }
            }
        }
    }
    assert!(offenders.is_empty(), "{}", offenders.join("\n"));
    for (a, b, _) in EXCEPTIONS {
        let is_used = seen.iter().any(|(user, used)| user == a && used == b);
        assert!(is_used && rooms[*a] == rooms[*b], "the exception of {a} for {b} is needed no more");
    }
}

#[test]
fn sql_stands_only_in_the_directory_of_sql() {
    let words =
        "SELECT|INSERT|UPDATE|DELETE|BEGIN|COMMIT|ROLLBACK|SAVEPOINT|CREATE|DROP|ALTER|REPLACE|WITH|VACUUM|ATTACH";
    let statement = Regex::new(&format!(r#"(?m)"(?:\\\n)?\s*(?:{words})\s"#)).expect("a pattern");
    let mut offenders = Vec::new();
    for source in sources() {
        let code = source.code();
        offenders.extend(statement.find_iter(&code).map(|found| {
            let line = code[..found.end()].matches('\n').count();
            format!("{}: {}", source.place(line), found.as_str().trim())
        }));
    }
    assert!(offenders.is_empty(), "{}", offenders.join("\n"));
}

#[test]
fn each_file_of_sql_is_one_statement_and_is_used() {
    let code: String = sources().iter().map(Source::code).collect();
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/sql");
    for engine in fs::read_dir(dir).expect("a directory").flatten() {
        for file in fs::read_dir(engine.path()).expect("a directory").flatten().filter(|file| file.path().is_file()) {
            let path = file.path();
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            assert!(
                code.contains(&format!("\"{name}\"")) || code.contains(&format!("/{name}.sql")),
                "{name} is not used"
            );
            let text = fs::read_to_string(&path).expect("SQL");
            assert!(text.starts_with("-- "), "{} does not say what it promises", path.display());
            let body: String = text.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
            assert!(body.trim().trim_end_matches(';').find(';').is_none(), "{} holds two statements", path.display());
        }
    }
}

#[test]
fn no_function_is_longer_than_a_screen() {
    let start = Regex::new(r"^( *)(?:pub(?:\([a-z]+\))? )?(?:const )?(?:unsafe )?fn ([a-z_0-9]+)").expect("a pattern");
    let mut offenders = Vec::new();
    let mut count = 0;
    for source in sources() {
        for (number, line) in source.lines.iter().enumerate() {
            let Some(found) = start.captures(line).filter(|_| !line.ends_with(['}', ';'])) else { continue };
            let end = format!("{}}}", &found[1]);
            let declared = format!("{})", &found[1]);
            let is_end = |line: &&String| **line == end || (line.starts_with(&declared) && line.ends_with(';'));
            let length = source.lines[number..].iter().take_while(|line| !is_end(line)).count() + 1;
            count += 1;
            if length > LONGEST_FUNCTION {
                offenders.push(format!("{}: {} has {length} lines", source.place(number), &found[2]));
            }
        }
    }
    assert!(count > 200, "only {count} functions were found");
    assert!(offenders.is_empty(), "{}", offenders.join("\n"));
}

#[test]
fn no_file_is_too_long_to_be_read_in_one_sitting() {
    let sources = sources();
    let long = sources.iter().filter(|source| source.lines.len() > LONGEST_FILE);
    let offenders: Vec<String> = long.map(|source| source.place(source.lines.len())).collect();
    assert!(offenders.is_empty(), "longer than {LONGEST_FILE} lines: {}", offenders.join("\n"));
}
