//! `cargo xtask fuzz`: runs each fuzz target in `fuzz/` for some seconds. The initial corpus is the encoded messages of
//! the tests.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Options of `cargo xtask fuzz`.
#[derive(clap::Args)]
pub struct Options {
    /// The fuzz target: the name of a file in fuzz/fuzz_targets (default: all targets)
    target: Option<String>,
    /// Duration of the run of each target in seconds
    #[arg(long, default_value_t = 60, value_name = "N")]
    seconds: u32,
}

/// Fuzzes one target or all targets.
///
/// # Errors
/// The target does not exist, tools are missing, or the fuzzer found a failure.
pub fn run(options: &Options, root: &Path) -> Result<(), Box<dyn Error>> {
    let known = targets(root)?;
    let chosen = match &options.target {
        None => known,
        Some(target) if known.contains(target) => vec![target.clone()],
        Some(target) => return Err(format!("no target {target}; there are: {}", known.join(", ")).into()),
    };
    let installed = Command::new("cargo").args(["+nightly", "fuzz", "--version"]).stderr(Stdio::null()).output();
    if !installed.is_ok_and(|out| out.status.success()) {
        return Err("fuzzing needs `rustup toolchain install nightly` and `cargo install --locked cargo-fuzz`".into());
    }
    for target in chosen {
        println!("==> fuzzing {target} for {} s", options.seconds);
        seed(root, &root.join("fuzz/corpus").join(&target))?;
        let mut command = Command::new("cargo");
        command.current_dir(root).args(["+nightly", "fuzz", "run", &target, "--"]);
        let status = command.arg(format!("-max_total_time={}", options.seconds)).status()?;
        if !status.success() {
            return Err(format!("{target} found something: {status}").into());
        }
    }
    Ok(())
}

fn targets(root: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    let files = fs::read_dir(root.join("fuzz/fuzz_targets"))?;
    let paths = files.map(|entry| entry.map(|e| e.path())).collect::<Result<Vec<_>, _>>()?;
    let mut names: Vec<String> =
        paths.iter().filter_map(|path| path.file_stem()).map(|stem| stem.to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

/// Adds the bytes of every `crates/*/tests/frames/*.hex` to the corpus from which the fuzzer starts.
fn seed(root: &Path, corpus: &Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(corpus)?;
    for member in fs::read_dir(root.join("crates"))? {
        let Ok(frames) = fs::read_dir(member?.path().join("tests/frames")) else { continue };
        for frame in frames {
            let path = frame?.path();
            if let (Some("hex"), Some(stem)) = (path.extension().and_then(|e| e.to_str()), path.file_stem()) {
                fs::write(corpus.join(stem), frame_bytes(&fs::read_to_string(&path)?))?;
            }
        }
    }
    Ok(())
}

/// Converts a text of hexadecimal digits to bytes; in the text, `#` begins a comment.
fn frame_bytes(text: &str) -> Vec<u8> {
    let code = text.lines().filter_map(|line| line.split('#').next());
    let digits: Vec<u8> = code.flat_map(str::chars).filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
    digits.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect()
}

#[cfg(test)]
mod tests {
    use super::frame_bytes;

    #[test]
    fn comments_are_not_bytes() {
        assert_eq!(frame_bytes("# face\n00ff 1a # be ef\n0b\n"), [0, 0xff, 0x1a, 0x0b]);
    }
}
