//! `cargo xtask xdr`: generates Rust types from the XDR descriptions in the NFS RFCs.

mod bounds;
mod emitter;
mod lexer;
mod model;
mod parser;
mod rust;
mod texts;

use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The RFCs with an XDR description; each description may use the definitions of the RFCs before it in this list.
///
/// RFC 7863 describes NFSv4.0, 4.1 and 4.2 completely, so the description in RFC 5662 (NFSv4.1) would add no
/// definition.
const RFCS: [u32; 3] = [7863, 8276, 8435];

/// Options of `cargo xtask xdr`.
#[derive(clap::Args)]
pub struct Options {
    /// Directory with rfc7863.txt, rfc8276.txt and rfc8435.txt (or .txt.gz). By default the command downloads Debian's
    /// package of RFCs into a temporary folder, which needs apt and installs nothing
    #[arg(long, value_name = "DIR")]
    rfc_dir: Option<PathBuf>,
    /// Only compare the generated files with the committed files; fail if they differ
    #[arg(long)]
    check: bool,
}

/// Generates the types in `crates/wire/src/nfs4/generated`, or checks that the committed types are up to date.
pub fn run(options: &Options, root: &Path) -> Result<(), Box<dyn Error>> {
    let files = match &options.rfc_dir {
        Some(dir) => generate(dir)?,
        None => {
            let scratch = tempfile::tempdir()?;
            generate(&texts::download(scratch.path())?)?
        }
    };
    let target = root.join("crates/wire/src/nfs4/generated");
    fs::create_dir_all(&target)?;
    let mut stale = Vec::new();
    for (name, text) in files {
        let path = target.join(name);
        let text = format(&text, root)?;
        if fs::read_to_string(&path).is_ok_and(|old| old == text) {
            continue;
        }
        stale.push(name);
        if !options.check {
            fs::write(&path, text)?;
            println!("wrote {}", path.strip_prefix(root).unwrap_or(&path).display());
        }
    }
    if options.check && !stale.is_empty() {
        return Err(format!("{} differ from what the RFCs give", stale.join(", ")).into());
    }
    Ok(())
}

fn generate(rfc_dir: &Path) -> Result<Vec<emitter::File>, Box<dyn Error>> {
    let mut model = model::Model::default();
    parser::parse(include_str!("xdr/additions.x"), &mut model).map_err(|e| format!("additions.x: {e}"))?;
    for rfc in RFCS {
        parser::parse(&texts::description(rfc_dir, rfc)?, &mut model).map_err(|e| format!("RFC {rfc}: {e}"))?;
    }
    parser::parse(include_str!("xdr/amendments.x"), &mut model).map_err(|e| format!("amendments.x: {e}"))?;
    Ok(emitter::emit(&model)?)
}

/// Formats `text` with rustfmt and the project's rustfmt configuration.
fn format(text: &str, root: &Path) -> Result<String, Box<dyn Error>> {
    let mut rustfmt = Command::new("rustfmt")
        .current_dir(root)
        .args(["--edition", "2024"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| format!("cannot start rustfmt: {e}"))?;
    let mut stdin = rustfmt.stdin.take().ok_or("rustfmt takes no input")?;
    let text = text.to_string();
    let feeder = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let out = rustfmt.wait_with_output()?;
    feeder.join().map_err(|_| "feeding rustfmt failed")??;
    if !out.status.success() {
        return Err("rustfmt refused the generated text".into());
    }
    Ok(String::from_utf8(out.stdout)?)
}
