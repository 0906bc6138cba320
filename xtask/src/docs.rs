//! `cargo xtask docs`: builds the guide in `docs/` as a book with mdBook, and the manual pages.
//!
//! The Markdown files link to each other relative to the project's root, for readers on a forge. mdBook builds the book
//! from a copy of the pages in the same folders. In the copy, links to files that are not pages lead to the repository.

use crate::cargo;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

/// The version of mdBook that this command installs below `target/tools`.
const MDBOOK: &str = "0.5.4";
/// The URL of the repository, from `Cargo.toml`.
const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");
/// The path of the generated page with the help of every command, in the copy of the pages from which mdBook builds the
/// book.
const OPTIONS: &str = "docs/options.md";
const CONFIG: &str = r#"[book]
title = "Weir"
description = "A parallel file system in user space"
src = "src"

[output.html]
no-section-label = true
"#;

/// Options of `cargo xtask docs`.
#[derive(clap::Args)]
pub struct Options {
    /// Write the copy of the pages from which mdBook builds the book, and the manual pages, but do not run mdBook
    #[arg(long)]
    no_book: bool,
}

/// Builds the book in `target/docs/book` and the manual pages in `target/docs/man`.
pub fn run(options: &Options, root: &Path) -> Result<(), Box<dyn Error>> {
    let out = root.join("target/docs");
    if out.exists() {
        fs::remove_dir_all(&out)?;
    }
    succeed(cargo().current_dir(root).args(["build", "--quiet", "--package", "weir"]))?;
    let weir = root.join("target/debug/weir");
    succeed(Command::new(&weir).arg("man").arg(out.join("man")))?;
    let pages = pages(root)?;
    for page in &pages {
        let text = fs::read_to_string(root.join(page))?;
        let text = if page == Path::new("docs/SUMMARY.md") { summary(&text) } else { relinked(&text, page, &pages) };
        let copy = if page == Path::new("docs/SUMMARY.md") { Path::new("SUMMARY.md") } else { page };
        write(&out.join("src").join(copy), text.as_bytes())?;
    }
    for folder in ["docs", "docs/benchmarks"] {
        for picture in entries(&root.join(folder))?.into_iter().filter(|path| has_extension(path, "svg")) {
            let copy = out.join("src").join(folder).join(picture.file_name().unwrap_or_default());
            write(&copy, &fs::read(&picture)?)?;
        }
    }
    write(&out.join("src").join(OPTIONS), option_pages(&weir, &out.join("man"))?.as_bytes())?;
    write(&out.join("book.toml"), CONFIG.as_bytes())?;
    println!("manual pages: {}", out.join("man").display());
    if !options.no_book {
        build(root, &out)?;
        println!("the book: {}", out.join("book/index.html").display());
    }
    Ok(())
}

/// Runs mdBook, and treats warnings of mdBook as errors.
fn build(root: &Path, out: &Path) -> Result<(), Box<dyn Error>> {
    let output = Command::new(mdbook(root)?).arg("build").arg(out).stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() || said.contains("WARN") || said.contains("ERROR") {
        return Err(format!("mdbook build failed, or warned:\n{said}").into());
    }
    Ok(())
}

/// Returns the path of mdBook; installs mdBook if it is absent.
fn mdbook(root: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let tools = root.join("target/tools");
    let program = tools.join("bin/mdbook");
    let version = Command::new(&program).arg("--version").output();
    if version.is_ok_and(|version| String::from_utf8_lossy(&version.stdout).contains(MDBOOK)) {
        return Ok(program);
    }
    println!("installing mdBook {MDBOOK} into {} (a few minutes, once)", tools.display());
    let mut install = cargo();
    install.args(["install", "mdbook", "--version", MDBOOK, "--locked", "--quiet", "--root"]).arg(&tools);
    succeed(install.args(["--no-default-features", "--features", "search"]))?;
    Ok(program)
}

fn succeed(command: &mut Command) -> Result<(), Box<dyn Error>> {
    let status = command.status().map_err(|error| format!("cannot run {command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} failed: {status}").into()) }
}

fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
    fs::write(path, bytes)
}

/// Returns the sorted entries of a folder.
fn entries(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    found.sort();
    Ok(found)
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found == extension)
}

/// Returns the paths of the pages of the book, relative to the root of the repository.
fn pages(root: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut pages = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"].map(PathBuf::from).to_vec();
    for dir in ["docs", "docs/decisions"] {
        let found = entries(&root.join(dir))?.into_iter().filter(|path| has_extension(path, "md"));
        pages.extend(found.filter_map(|path| Some(Path::new(dir).join(path.file_name()?))));
    }
    Ok(pages)
}

/// Returns the book's table of contents (SUMMARY.md), with paths relative to the root of the repository, and with the
/// generated page of command options.
fn summary(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let line =
            line.replace("](../", "](/").replace("](", "](docs/").replace("](docs//", "](").replace("](docs/)", "]()");
        out += &format!("{line}\n");
        if line.ends_with("(docs/commands.md)") {
            out += &format!("  - [Options of every command]({OPTIONS})\n");
        }
    }
    out
}

/// Returns the text of a page, in which links to files outside of the book lead to the repository. Does not change
/// links in code.
fn relinked(text: &str, page: &Path, pages: &[PathBuf]) -> String {
    let (mut out, mut in_code) = (String::new(), false);
    for line in text.lines() {
        in_code ^= line.trim_start().starts_with("```");
        let mut rest = line;
        while let Some((front, target, back)) = next_link(rest).filter(|_| !in_code) {
            let _ = write!(out, "{front}{}", relink(target, page, pages));
            rest = back;
        }
        let _ = writeln!(out, "{rest}");
    }
    out
}

/// Splits a line at its first link into the text before the link target, the link target, and the rest.
fn next_link(line: &str) -> Option<(&str, &str, &str)> {
    let begin = line.find("](")? + 2;
    let end = begin + line[begin..].find(')')?;
    Some((&line[..begin], &line[begin..end], &line[end..]))
}

fn relink(target: &str, page: &Path, pages: &[PathBuf]) -> String {
    let file = target.split('#').next().unwrap_or(target);
    if file.is_empty() || target.contains("://") || file.ends_with(".svg") {
        return target.to_owned();
    }
    let mut path = page.parent().map(Path::to_path_buf).unwrap_or_default();
    for part in Path::new(file).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    if pages.contains(&path) { target.to_owned() } else { format!("{REPOSITORY}/blob/main/{}", path.display()) }
}

/// Returns the page with the help of every command that has a manual page.
fn option_pages(weir: &Path, man: &Path) -> Result<String, Box<dyn Error>> {
    let mut out = "# Options of every command\n".to_owned();
    for page in entries(man)? {
        let name = page.file_stem().and_then(|stem| stem.to_str()).ok_or("a manual page has a strange name")?;
        let words: Vec<&str> = name.split('-').collect();
        let help = Command::new(weir).args(&words[1..]).arg("--help").output()?;
        if !help.status.success() {
            return Err(format!("{} --help failed", words.join(" ")).into());
        }
        let _ = write!(out, "\n## {}\n\n```text\n{}```\n", words.join(" "), String::from_utf8(help.stdout)?);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_in_the_table_of_contents() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let contents = summary(&fs::read_to_string(root.join("docs/SUMMARY.md")).unwrap());
        let missing = |page: &PathBuf| !contents.contains(&format!("]({})", page.display()));
        let missing: Vec<PathBuf> = pages(&root).unwrap().into_iter().filter(missing).collect();
        assert_eq!(missing, [Path::new("docs/SUMMARY.md")]);
        assert!(contents.contains(OPTIONS));
    }

    #[test]
    fn links_out_of_the_book_lead_to_the_repository() {
        let pages = [PathBuf::from("README.md"), PathBuf::from("docs/policy.md")];
        let page = Path::new("docs/policy.md");
        let text = "see [a](../README.md#x), [b](#y) and [c](../crates/client/)\n```\n[d](e)\n```\n";
        let out = format!(
            "see [a](../README.md#x), [b](#y) and [c]({REPOSITORY}/blob/main/crates/client)\n```\n[d](e)\n```\n"
        );
        assert_eq!(relinked(text, page, &pages), out);
        assert_eq!(relink("https://example.org/a", page, &pages), "https://example.org/a");
    }
}
