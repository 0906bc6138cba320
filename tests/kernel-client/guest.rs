//! A virtual machine with a stock Linux kernel, which runs scripts for the host.

use crate::cluster;
use crate::image::Image;
use crate::mountstats::{self, MountStats};
use crate::saved;
use data_encoding::BASE64;
use rustix::process::Signal;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tempfile::TempDir;

/// The address of the host's loopback interface inside a guest.
pub const HOST: &str = "10.0.2.2";
/// Time limit of one script. If the guest hangs, its script fails after this time, so that the test does not hang.
const PATIENCE: Duration = Duration::from_secs(300);
/// Time limit of one boot of a guest. A boot takes 5 to 25 seconds, depending on the load of the machine.
const BOOT_PATIENCE: Duration = Duration::from_secs(100);
/// Maximum number of starts of a guest that hangs at its start. A guest sends no request to a server before it is
/// ready, so only the emulator can cause such a hang.
pub const STARTS: u32 = 4;
/// The CPU of the guests. This CPU has no CMPXCHG16B instruction, because QEMU 7.2 without hardware virtualization
/// corrupts the flags register in this instruction. Newer kernels use the instruction to allocate memory.
const CPU: &str = "max,-cx16";
/// Maximum number of guests that run at the same time.
const GUESTS: usize = 2;

/// Returns whether tests run at full scale. Otherwise, they omit the parts that take longer than a few seconds.
pub fn full() -> bool {
    std::env::var("WEIR_TEST_SCALE").is_ok_and(|scale| scale == "full")
}

/// Returns the mount options of a test that runs once for each NFS version. Without `WEIR_TEST_SCALE=full`, the test
/// runs only for the version that guests choose by default.
pub fn versions() -> &'static [&'static str] {
    if full() { &["vers=4.1", "vers=4.2"] } else { &["vers=4.2"] }
}

/// The last commands of the script that sets up a guest from the saved state. The NFS client derives its verifier from
/// the time at which its module is loaded. The guest loads the modules after it has received the current time, so no
/// two guests have the same verifier.
const WAKE: &str = "
for module in nfsv4 nfs_layout_nfsv41_files nfs_layout_flexfiles; do
    modprobe \"$module\" || echo \"no module $module\" >/dev/console
done
uname -r";
/// The process id, modulo 30,000, after which the next guest numbers its processes. It differs by 1000 between
/// successive guests, because all guests continue from the same saved state and would otherwise use the same ids.
static PIDS: AtomicU32 = AtomicU32::new(1000);

static RUNNING: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

/// A running guest. Dropping this value ends its QEMU process.
pub struct Guest {
    dir: TempDir,
    machine: Child,
    port: BufReader<UnixStream>,
    /// The permit to run this guest, because at most [`GUESTS`] guests run at the same time. `None` until the guest is
    /// ready.
    place: Option<Places>,
    /// The release of the guest's kernel, as `uname -r` prints it.
    pub kernel: String,
}

/// Permits for one or more running guests; there are [`GUESTS`] permits. Dropping this value releases the permits.
struct Places(usize);

/// The result of a script that a guest has run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Done {
    /// The exit status of the script.
    pub status: i32,
    /// The whole output of the script, including standard error.
    pub output: String,
}

impl Places {
    fn take(count: usize) -> Places {
        let mut running = RUNNING.0.lock().unwrap_or_else(PoisonError::into_inner);
        while *running + count > GUESTS {
            running = RUNNING.1.wait(running).unwrap_or_else(PoisonError::into_inner);
        }
        *running += count;
        Places(count)
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        *RUNNING.0.lock().unwrap_or_else(PoisonError::into_inner) -= self.0;
        RUNNING.1.notify_all();
    }
}

impl Guest {
    /// Starts one guest and waits until it is ready.
    pub fn boot() -> Guest {
        Guest::in_place("guest", Places::take(1))
    }

    /// Starts two guests at the same time and waits until both are ready.
    pub fn boot_two() -> (Guest, Guest) {
        // Get the permits for both guests at once. If two tests each had one permit and waited for a second permit,
        // they would wait forever.
        let both = Places::take(2);
        std::mem::forget(both);
        let [first, second] = ["first", "second"];
        std::thread::scope(|scope| {
            let other = scope.spawn(move || Guest::in_place(second, Places(1)));
            let one = Guest::in_place(first, Places(1));
            (one, other.join().expect("the second guest boots"))
        })
    }

    fn in_place(name: &str, place: Places) -> Guest {
        let image = Image::get();
        let state = saved::state(&image);
        for start in 1..=STARTS {
            let mut guest = Guest::start(&image, &["-incoming", &format!("exec:cat '{}'", state.display())]);
            match guest.wake(name) {
                Ok(()) => {
                    guest.port.get_ref().set_read_timeout(Some(PATIENCE)).expect("a time limit");
                    guest.place = Some(place);
                    return guest;
                }
                Err(e) => eprintln!("start {start} of {STARTS} of a guest came to nothing: {e}\n{}", guest.console()),
            }
        }
        panic!("the guest does not start");
    }

    /// Starts QEMU with `image` and further arguments. The guest may not be ready yet when this function returns.
    pub fn start(image: &Image, arguments: &[&str]) -> Guest {
        let dir = tempfile::tempdir().expect("a folder");
        let socket = dir.path().join("port");
        let chardev = format!("socket,id=port,path={},server=on,wait=off", socket.display());
        // `no_timer_check`: without it, the kernel mistakes late timer ticks on a busy machine for a broken timer.
        let words = "console=ttyS0 panic=-1 mitigations=off tsc=reliable random.trust_cpu=on no_timer_check";
        let machine = Command::new("qemu-system-x86_64")
            .args(["-accel", "tcg,thread=multi", "-cpu", CPU, "-smp", "2", "-m", "1024"])
            .args(["-no-reboot", "-nodefaults", "-display", "none", "-monitor", "none"])
            .arg("-serial")
            .arg(format!("file:{}", dir.path().join("console").display()))
            .arg("-kernel")
            .arg(&image.kernel)
            .arg("-initrd")
            .arg(&image.root)
            .args(["-append", words])
            .args(["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net"])
            .args(["-chardev", &chardev, "-device", "virtio-serial-pci", "-device", "virtserialport,chardev=port"])
            .args(arguments)
            .stdin(Stdio::null())
            .spawn()
            .expect("qemu-system-x86_64 starts (package qemu-system-x86)");
        let port = connect(&socket);
        port.set_read_timeout(Some(BOOT_PATIENCE)).expect("a time limit");
        Guest { dir, machine, port: BufReader::new(port), place: None, kernel: String::new() }
    }

    /// Waits until a guest reports at the end of its boot that it is ready.
    pub fn booted(&mut self) -> io::Result<()> {
        match self.line()?.as_str() {
            "ready" => Ok(()),
            other => Err(io::Error::other(other.to_owned())),
        }
    }

    /// Sets up a guest that continues from the saved state. Sets its name, its time and its process ids, and loads its
    /// NFS modules.
    fn wake(&mut self, name: &str) -> io::Result<()> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_err(io::Error::other)?.as_secs();
        let pid = PIDS.fetch_add(1000, Relaxed) % 30_000;
        let done = self.exchange(&format!(
            "hostname {name}; date -u -s @{now} >/dev/null; echo {pid} >/proc/sys/kernel/ns_last_pid{WAKE}"
        ))?;
        self.kernel = done.output.lines().last().unwrap_or_default().to_owned();
        if done.status == 0 && !self.kernel.is_empty() { Ok(()) } else { Err(io::Error::other(done.output)) }
    }

    /// Returns the last 4 KiB of the messages of the guest's kernel.
    pub fn console(&self) -> String {
        let path: PathBuf = self.dir.path().join("console");
        let text = fs::read(path).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(4096)..]).into_owned()
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.port.read_line(&mut line)?;
        match line.strip_suffix('\n') {
            Some(line) => Ok(line.to_owned()),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn exchange(&mut self, script: &str) -> io::Result<Done> {
        let request = BASE64.encode(script.as_bytes()) + "\n";
        self.port.get_mut().write_all(request.as_bytes())?;
        let line = self.line()?;
        let (status, len) = line.split_once(' ').ok_or_else(|| io::Error::other(line.clone()))?;
        let status = status.parse().map_err(io::Error::other)?;
        let mut output = vec![0; len.trim().parse().map_err(io::Error::other)?];
        self.port.read_exact(&mut output)?;
        Ok(Done { status, output: String::from_utf8_lossy(&output).into_owned() })
    }

    /// Runs a shell script in the guest, and returns its exit status and output.
    pub fn run(&mut self, script: &str) -> Done {
        let done = self.exchange(script);
        done.unwrap_or_else(|e| panic!("the guest does not answer ({e}) to\n{script}\n{}", self.console()))
    }

    /// Runs a shell script in the guest, which must succeed. Returns its output without line breaks at the end.
    pub fn ok(&mut self, script: &str) -> String {
        let done = self.run(script);
        assert_eq!(done.status, 0, "{script}\n{}\n{}", done.output, self.console());
        done.output.trim_end_matches('\n').to_owned()
    }

    /// Stops the virtual machine (SIGSTOP). From now on, the guest replies to no packet.
    pub fn freeze(&self) {
        cluster::signal(&self.machine, Signal::STOP);
    }

    /// Lets the stopped virtual machine continue (SIGCONT).
    pub fn thaw(&self) {
        cluster::signal(&self.machine, Signal::CONT);
    }

    /// Returns whether the guest's kernel has the version `version` or a later version.
    pub fn is_at_least(&self, version: [u32; 2]) -> bool {
        let mut numbers = self.kernel.split(['.', '-', '+']).map(|number| number.parse().unwrap_or(0));
        [numbers.next(), numbers.next()].map(|number| number.unwrap_or(0)) >= version
    }

    /// Mounts a file system at `/mnt` in the guest. The server listens at `port` of the host. Adds the mount options
    /// that all guests need to the given options.
    pub fn mount(&mut self, port: u16, options: &str) {
        // The user-mode network of QEMU does not keep privileged source ports, so the mount needs `noresvport`.
        self.ok(&format!("mount.nfs4 -o {options},noresvport,port={port} {HOST}:/ /mnt"));
    }

    /// Returns the counters of the guest's kernel for the file system at `/mnt`.
    pub fn mountstats(&mut self) -> MountStats {
        let text = self.ok("cat /proc/self/mountstats");
        mountstats::parse(&text, "/mnt").unwrap_or_else(|| panic!("no NFS file system at /mnt:\n{text}"))
    }
}

/// Connects to a Unix socket of QEMU, and waits until QEMU has opened the socket.
pub fn connect(socket: &Path) -> UnixStream {
    let until = Instant::now() + BOOT_PATIENCE;
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return stream,
            Err(e) if Instant::now() > until => panic!("QEMU does not open {}: {e}", socket.display()),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Ignore errors: QEMU may already have ended by itself.
        let _ = self.machine.kill();
        let _ = self.machine.wait();
    }
}
