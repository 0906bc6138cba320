//! `weir put`: stores standard input as one file.

use crate::copy::remote::remove_if_there;
use crate::copy::{Buffer, PIECE, Pool, temporary_name};
use crate::failure::{Exit, Failure, Outcome};
use crate::modes;
use crate::session::{Connect, run as with_mounts};
use crate::show;
use crate::stop::Stop;
use bytes::Bytes;
use client::{CreateOptions, File, Mount, Target, in_doubt};
use std::ffi::OsString;
use std::io::Read;
use tokio::sync::mpsc;
use types::{FileKind, SetAttrs, Status};

/// Maximum number of buffers with input that wait to be written to Weir.
const AHEAD: usize = 4;

/// Store standard input as a file
///
/// The file appears under its name when all its data are durable. It replaces an existing file.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  echo hello | weir put /hello.txt
  tar cf - ~/project | weir put /backup.tar")]
pub struct Args {
    /// The path of the file to store
    path: OsString,
    /// Permission bits, octal [default: those of the replaced file, else 0666 without the bits of the umask]
    #[arg(short, long, value_parser = modes::octal)]
    mode: Option<u32>,
    #[command(flatten)]
    connect: Connect,
}

/// Runs `weir put`.
pub fn run(args: Args) -> Outcome {
    let target = args.connect.target(&args.path)?;
    with_mounts(&args.connect, async |mounts| {
        let stop = Stop::listen()?;
        let mount = mounts.get(&target).await?;
        let bytes = store(&mount, &target, args.mode, &stop).await.map_err(|e| e.about(&target))?;
        tracing::info!("stored {} in {target}", show::size(bytes));
        Ok(Exit::Done)
    })
}

async fn store(mount: &Mount, target: &Target, mode: Option<u32>, stop: &Stop) -> Result<u64, Failure> {
    let (Some(parent), Some(name)) = (target.parent(), target.name()) else {
        return Err(Failure::usage("is a directory").next("name the file to store, as in weir:/file"));
    };
    let (dir, _) = mount.resolve(parent.path(), true).await?;
    let mode = match mount.lookup(&dir, name).await {
        Ok((_, attrs)) if attrs.kind == FileKind::Directory => return Err(Failure::new("is a directory")),
        Ok((_, attrs)) if attrs.kind == FileKind::Regular => mode.unwrap_or(attrs.mode & 0o777),
        Ok(_) => mode.unwrap_or_else(|| modes::without_umask(0o666)),
        Err(e) if e.is(Status::NoEnt) => mode.unwrap_or_else(|| modes::without_umask(0o666)),
        Err(e) => return Err(e.into()),
    };
    let temporary = temporary_name()?;
    let options = CreateOptions { mode: 0o600, exclusive: true, ..CreateOptions::default() };
    let known = |e: client::Error| Failure::from(e).renamed(&temporary, name);
    let file = mount.create(&dir, &temporary, options).await.map_err(known)?;
    let stored = match fill(&file, stop).await {
        Ok(size) => {
            let changes = SetAttrs { mode: Some(mode), ..SetAttrs::default() };
            let finished = in_doubt::finish(mount, file, changes, &dir, [&temporary, name]).await;
            finished.map(|_| size).map_err(known)
        }
        Err(failure) => Err(failure),
    };
    if stored.is_err()
        && let Err(left) = remove_if_there(mount, &dir, &temporary).await
    {
        tracing::warn!(name = show::path(&temporary), error = %left, "cannot remove a temporary file");
    }
    stored
}

/// Writes all of standard input to the file. Returns the number of bytes written.
async fn fill(file: &File, stop: &Stop) -> Result<u64, Failure> {
    let (send, mut receive) = mpsc::channel(AHEAD);
    // Read standard input in a separate thread, so that the command can stop at once when the user asks for it, even if
    // a read blocks. The thread ends with the process.
    std::thread::spawn(move || read_all(&send));
    let mut at = 0;
    loop {
        let piece = tokio::select! {
            biased;
            () = stop.wait() => return Err(Failure::interrupted()),
            piece = receive.recv() => piece,
        };
        let Some(piece) = piece else { return Ok(at) };
        let piece = piece.map_err(|e| Failure::from(e).about("standard input"))?;
        let len = piece.len() as u64;
        file.write_at(at, piece).await?;
        at += len;
    }
}

fn read_all(send: &mpsc::Sender<std::io::Result<Bytes>>) {
    let (pool, mut input) = (Pool::default(), std::io::stdin().lock());
    loop {
        let mut buffer = pool.take();
        let outcome = read_full(&mut input, &mut buffer);
        let (stop, message) = match outcome {
            Ok(0) => return,
            Ok(len) => (len < PIECE, Ok(buffer.filled(len))),
            Err(e) => (true, Err(e)),
        };
        if send.blocking_send(message).is_err() || stop {
            return;
        }
    }
}

/// Fills the buffer from the input. Returns the number of bytes read, which is less than the length of the buffer
/// only at the end of the input.
fn read_full(input: &mut impl Read, buffer: &mut Buffer) -> std::io::Result<usize> {
    let space = buffer.space();
    let mut done = 0;
    while done < space.len() {
        match input.read(&mut space[done..]) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}
