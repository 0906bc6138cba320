//! The saved state of a virtual machine whose guest has booted, from which each test starts its guests. Such a start
//! takes one second, and a boot takes 5 to 25 seconds.

use crate::guest::{Guest, STARTS, connect};
use crate::image::Image;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Interval between two checks whether QEMU has saved the state, which takes about two seconds.
const PAUSE: Duration = Duration::from_millis(50);

/// Returns the path of the file with the saved state for `image`. Makes the file first if it does not exist.
pub fn state(image: &Image) -> PathBuf {
    let store = image.kernel.parent().expect("the folder of the image");
    // Hold a lock, so that of two concurrent test runs only one saves the state of the guest.
    let lock = File::create(store.join("state.lock")).expect("a lock");
    lock.lock().expect("the lock");
    let version = Command::new("qemu-system-x86_64").arg("--version").output();
    let version = version.expect("qemu-system-x86_64 starts (package qemu-system-x86)").stdout;
    let mut recipe = DefaultHasher::new();
    (version, include_str!("guest.rs"), include_str!("saved.rs")).hash(&mut recipe);
    let state = store.join(format!("state-{:016x}", recipe.finish()));
    if !state.exists() {
        remove_other_states(store).expect("the folder of the image can be changed");
        let saved = (1..=STARTS).any(|boot| {
            let saved = save(image, &state);
            saved.inspect_err(|e| eprintln!("boot {boot} of {STARTS} of a guest came to nothing: {e}")).is_ok()
        });
        assert!(saved, "the guest does not boot");
    }
    state
}

fn remove_other_states(store: &Path) -> io::Result<()> {
    for entry in fs::read_dir(store)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("state-") {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Boots a guest and saves its state in the file `state`.
fn save(image: &Image, state: &Path) -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("control");
    let mut guest = Guest::start(image, &["-qmp", &format!("unix:{},server=on,wait=off", socket.display())]);
    guest.booted().map_err(|e| io::Error::other(format!("{e}\n{}", guest.console())))?;
    let mut control = Control(BufReader::new(connect(&socket)));
    control.reply()?;
    control.execute("qmp_capabilities", &json!({}))?;
    let unfinished = state.with_extension("new");
    control.execute("migrate", &json!({ "uri": format!("exec:cat > '{}'", unfinished.display()) }))?;
    loop {
        let found = control.execute("query-migrate", &json!({}))?;
        match found["status"].as_str() {
            Some("completed") => break,
            Some("failed" | "cancelled") => return Err(io::Error::other(found.to_string())),
            _ => std::thread::sleep(PAUSE),
        }
    }
    fs::rename(unfinished, state)
}

/// A connection to QEMU's control socket (QMP).
struct Control(BufReader<UnixStream>);

impl Control {
    /// Reads one message of QEMU, which is a reply or an event.
    fn reply(&mut self) -> io::Result<Value> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_str(&line)?)
    }

    /// Executes a QMP command and returns its result.
    fn execute(&mut self, command: &str, arguments: &Value) -> io::Result<Value> {
        let request = json!({ "execute": command, "arguments": arguments });
        writeln!(self.0.get_mut(), "{request}")?;
        loop {
            let mut reply = self.reply()?;
            if reply.get("error").is_some() {
                return Err(io::Error::other(format!("{command}: {reply}")));
            }
            // Skip messages without `return` or `error`, because they are events, not replies.
            if let Some(result) = reply.get_mut("return") {
                return Ok(result.take());
            }
        }
    }
}
