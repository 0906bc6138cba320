//! `cargo xtask draw`: random comments and sentences of the docs, for a reader who judges whether they are clear.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

/// Options of `cargo xtask draw`.
#[derive(clap::Args)]
pub struct Options {
    /// The same seed draws the same comments and sentences from the same tree
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many comments to draw
    #[arg(long, default_value_t = 100)]
    comments: usize,
    /// How many sentences of the docs to draw
    #[arg(long, default_value_t = 50)]
    sentences: usize,
    /// Draw from files below this folder only, for example crates/client
    #[arg(long, value_name = "FOLDER")]
    below: Option<PathBuf>,
}

/// Prints the drawn comments and sentences, each with its path and line.
pub fn run(options: &Options, root: &Path) -> Result<(), Box<dyn Error>> {
    let (mut comments, mut sentences) = (Vec::new(), Vec::new());
    for folder in ["crates", "tests", "bench", "xtask", "fuzz", "docs"] {
        visit(&root.join(folder), &mut |path| {
            let place = path.strip_prefix(root).unwrap_or(path);
            if options.below.as_ref().is_some_and(|below| !place.starts_with(below))
                || place.to_string_lossy().contains("/generated/")
            {
                return Ok(());
            }
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("rs") => comments.extend(places(place, comments_of(&fs::read_to_string(path)?))),
                Some("md") => sentences.extend(places(place, sentences_of(&fs::read_to_string(path)?))),
                _ => {}
            }
            Ok(())
        })?;
    }
    let mut random = Random(options.seed);
    println!("{} of {} comments, seed {}:", options.comments, comments.len(), options.seed);
    random.draw(comments, options.comments).iter().for_each(|text| println!("{text}"));
    println!("\n{} of {} sentences:", options.sentences, sentences.len());
    random.draw(sentences, options.sentences).iter().for_each(|text| println!("{text}"));
    Ok(())
}

/// Calls `act` for each file below a folder, in the order of the file names.
fn visit(folder: &Path, act: &mut impl FnMut(&Path) -> std::io::Result<()>) -> std::io::Result<()> {
    let mut entries = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    entries.sort();
    for path in entries {
        match path.is_dir() {
            true if path.ends_with("target") => {}
            true => visit(&path, act)?,
            false => act(&path)?,
        }
    }
    Ok(())
}

fn places(path: &Path, found: Vec<(usize, String)>) -> impl Iterator<Item = String> {
    found.into_iter().map(move |(line, text)| format!("{}:{line}: {text}", path.display()))
}

/// Returns the comments of a Rust file, with the line numbers where they begin. Consecutive comment lines are one
/// comment.
fn comments_of(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut last = 0;
    for (number, line) in (1..).zip(text.lines()) {
        let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
        let comment = comment.trim_start_matches(['/', '!']).trim();
        match found.last_mut() {
            Some((_, begun)) if last + 1 == number => *begun = format!("{begun} {comment}"),
            _ => found.push((number, comment.to_owned())),
        }
        last = number;
    }
    found
}

/// Returns the sentences of a Markdown file outside of code, with the line numbers where their paragraphs begin.
fn sentences_of(text: &str) -> Vec<(usize, String)> {
    let (mut found, mut in_code, mut paragraph) = (Vec::new(), false, (0, String::new()));
    let end = |paragraph: &mut (usize, String), found: &mut Vec<(usize, String)>| {
        let (line, text) = std::mem::take(paragraph);
        found.extend(text.split_inclusive(". ").map(|sentence| (line, sentence.trim().to_owned())));
    };
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        in_code ^= line.starts_with("```");
        let item = line.split_once(". ").filter(|(number, _)| number.parse::<u32>().is_ok());
        let begins = line.is_empty() || line.starts_with(['#', '|', '-', '*']) || line.starts_with("```");
        if begins || item.is_some() {
            end(&mut paragraph, &mut found);
        }
        let is_prose = !line.is_empty() && !["#", "```", "| ---"].iter().any(|mark| line.starts_with(mark));
        let line = item.map_or(line, |(_, text)| text);
        if !in_code && is_prose {
            paragraph.0 = if paragraph.1.is_empty() { number } else { paragraph.0 };
            paragraph.1 += &format!("{line} ");
        }
    }
    end(&mut paragraph, &mut found);
    found.retain(|(_, sentence)| sentence.split_whitespace().count() > 2);
    found
}

/// A generator of random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn draw<T>(&mut self, mut from: Vec<T>, count: usize) -> Vec<T> {
        let mut drawn = Vec::new();
        while drawn.len() < count && !from.is_empty() {
            let at = (self.next() % from.len() as u64) as usize;
            drawn.push(from.swap_remove(at));
        }
        drawn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_sentences_are_found() {
        let rust = "//! Head,\n//! second line.\n\nfn f() {} // not this\n    /// Doc.\n";
        assert_eq!(comments_of(rust), [(1, "Head, second line.".to_owned()), (5, "Doc.".to_owned())]);
        let page = "# Title\n\nThe first one is\nlong. The second one is short.\n```\nno code. here is none\n```\n* an item with words\n1. Make it `so` with\n`weir mkfs`.\n2. Start the daemons.\n";
        let found = [
            (3, "The first one is long."),
            (3, "The second one is short."),
            (8, "* an item with words"),
            (9, "Make it `so` with `weir mkfs`."),
            (11, "Start the daemons."),
        ];
        assert_eq!(sentences_of(page), found.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn the_same_seed_draws_the_same() {
        let draw = |seed| Random(seed).draw((0..1000).collect(), 5);
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert_eq!(Random(1).draw(vec![7], 5), [7]);
    }
}
