//! Tests of start, stop, restart and kill of an iod, and of directories without a valid store.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use iod::{Iod, StartError, Store, StoreError};
use types::{FileId, Fsid, Generation, ObjectId, Status};
use wire::native::{HeadState, Key, Procedure, TruncateArgs, TruncateReply, crc32c};
use wire::rpc::record::mark;

use crate::cluster::{ALL, Client, FSID, IOD, SESSION, Server, config, format_store, key, pattern, wait_until};

fn start_error(dir: &Path) -> StoreError {
    match Iod::start(config(dir)) {
        Err(StartError::Store(error)) => error,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("started in {}", dir.display()),
    }
}

#[test]
fn a_restart_changes_the_verifier_and_keeps_the_bytes() {
    let mut server = Server::new();
    let mut client = server.client();
    let data = pattern(300_000, 1);
    client.write(1, 0, &data).unwrap();
    let iod = server.running().iod();
    let before = client.verifier(1);
    assert_eq!(client.verifier(1), before);
    server.restart();
    assert!(client.is_closed());
    let mut client = server.client();
    assert_ne!(client.verifier(1), before);
    assert_eq!(server.running().iod(), iod);
    assert_eq!(client.read(1, 0, 300_000).unwrap(), data);
    assert_eq!(client.size(1).unwrap().size, 300_000);
}

#[test]
fn stop_closes_all_connections_and_unlocks_the_store() {
    let mut server = Server::new();
    let _idle = server.tcp();
    let mut clients: Vec<_> = (0..5).map(|_| server.client()).collect();
    let socket = server.running().unix_path().unwrap().to_owned();
    let addr = server.running().addrs()[0];
    for round in 0..10 {
        assert!(socket.exists());
        server.restart();
        for client in &mut clients {
            assert!(client.is_closed());
        }
        clients = (0..5).map(|_| server.client()).collect();
        clients[0].write(1 + round, 0, b"x").unwrap();
    }
    drop(server.running.take());
    assert!(!socket.exists());
    assert!(std::net::TcpStream::connect(addr).is_err());
    Store::open(&server.store_dir()).unwrap();
}

#[test]
fn a_second_iod_on_the_same_directory_is_refused() {
    let server = Server::new();
    let error = start_error(&server.store_dir());
    assert!(matches!(error, StoreError::InUse(_)));
    assert!(error.to_string().contains("another iod is using"), "{error}");
    server.client().write(1, 0, b"unharmed").unwrap();
    assert!(server.running().unix_path().unwrap().exists());
}

#[test]
fn errors_say_why_a_directory_cannot_be_used_as_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let missing = start_error(&path("missing"));
    assert!(matches!(missing, StoreError::Missing(_)) && missing.to_string().contains("weir mkfs"), "{missing}");
    fs::create_dir(path("empty")).unwrap();
    let empty = start_error(&path("empty"));
    assert!(matches!(empty, StoreError::NotFormatted(_)) && empty.to_string().contains("weir mkfs"), "{empty}");
    fs::write(path("file"), b"").unwrap();
    assert!(matches!(start_error(&path("file")), StoreError::NotADirectory(_)));
    assert!(matches!(start_error(&path("file/below")), StoreError::NotADirectory(_)));

    fs::write(path("empty/stranger"), b"").unwrap();
    let error = Store::format(&path("empty"), FSID).unwrap_err();
    assert!(matches!(error, StoreError::NotEmpty { .. }) && error.to_string().contains("stranger"), "{error}");
    assert!(!path("empty/FORMAT").exists());
}

#[test]
fn format_refuses_an_existing_store_and_completes_an_interrupted_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("a/b");
    let iod = Store::format(&store, FSID).unwrap();
    let error = Store::format(&store, FSID).unwrap_err();
    assert!(matches!(error, StoreError::AlreadyFormatted(_)), "{error}");
    let open = Store::open(&store).unwrap();
    assert_eq!((open.iod(), open.fsid()), (iod, FSID));
    drop(open);

    let cut_off = dir.path().join("cut");
    fs::create_dir_all(cut_off.join("objects")).unwrap();
    fs::write(cut_off.join("FORMAT.new"), b"WEI").unwrap();
    assert!(matches!(start_error(&cut_off), StoreError::NotFormatted(_)));
    assert_ne!(Store::format(&cut_off, FSID).unwrap(), iod);
    Store::open(&cut_off).unwrap();

    // An `objects` folder without a `FORMAT` file may be user data, so formatting refuses the directory.
    fs::remove_file(cut_off.join("FORMAT")).unwrap();
    fs::create_dir(cut_off.join("objects/00")).unwrap();
    assert!(matches!(Store::format(&cut_off, FSID), Err(StoreError::NotEmpty { .. })));
}

#[test]
fn foreign_newer_and_damaged_stores_are_refused_and_not_changed() {
    let server = Server::new();
    let dir = server.store_dir();
    let mut server = server;
    drop(server.running.take());
    let format = fs::read(dir.join("FORMAT")).unwrap();

    let mut other = config(&dir);
    other.fsid = Fsid([1; 16]);
    let error = Iod::start(other).err().unwrap().to_string();
    assert!(error.contains("belongs to file system"), "{error}");

    let mut newer = format.clone();
    newer[11] = 5;
    fs::write(dir.join("FORMAT"), &newer).unwrap();
    let error = start_error(&dir);
    assert!(matches!(error, StoreError::NewerVersion { found: 5, .. }), "{error}");

    for damaged in [&format[..20], &[][..], &[&format[..30], b"x", &format[31..]].concat()[..]] {
        fs::write(dir.join("FORMAT"), damaged).unwrap();
        let error = start_error(&dir);
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        assert_eq!(fs::read(dir.join("FORMAT")).unwrap(), damaged, "a damaged store was changed");
    }
    fs::write(dir.join("FORMAT"), &format).unwrap();
    Iod::start(config(&dir)).unwrap().stop();
}

#[test]
fn an_address_in_use_is_named_in_the_error() {
    let server = Server::new();
    let dir = tempfile::tempdir().unwrap();
    Store::format(&dir.path().join("s"), FSID).unwrap();
    let mut config = config(&dir.path().join("s"));
    config.listen = server.running().addrs().to_vec();
    let error = Iod::start(config.clone()).err().unwrap().to_string();
    assert!(error.contains(&server.running().addrs()[0].to_string()), "{error}");
    config.listen = vec!["127.0.0.1:0".parse().unwrap()];
    Iod::start(config).unwrap().stop();
}

#[test]
fn a_store_with_a_long_path_gets_its_socket_in_another_directory() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("x".repeat(120));
    Store::format(&store, FSID).unwrap();
    let running = Iod::start(config(&store)).unwrap();
    let path = running.unix_path().unwrap().to_owned();
    assert!(path.as_os_str().len() <= 107 && !path.starts_with(dir.path()));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
    std::os::unix::net::UnixStream::connect(&path).unwrap();
    running.stop();
    assert!(!path.exists() && !path.parent().unwrap().exists());

    let mut without = config(&store);
    without.unix = false;
    let running = Iod::start(without).unwrap();
    assert_eq!(running.unix_path(), None);
}

/// Runs the iod process that the test [`a_killed_iod_keeps_all_stable_writes`] starts and kills. Does nothing in an
/// ordinary run of the tests, where the environment variable `WEIR_TEST_IOD_TO_BE_KILLED` is not set.
#[test]
fn iod_process_for_the_kill_test() {
    let Some(dir) = std::env::var_os(TO_BE_KILLED) else { return };
    let running = Iod::start(config(Path::new(&dir))).unwrap();
    fs::write(Path::new(&dir).join("port.new"), running.addrs()[0].port().to_string()).unwrap();
    fs::rename(Path::new(&dir).join("port.new"), Path::new(&dir).join("port")).unwrap();
    // If the test ends without killing this iod process, the standard input of the process reaches end-of-file, so the
    // process ends.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

const TO_BE_KILLED: &str = "WEIR_TEST_IOD_TO_BE_KILLED";

#[test]
fn a_killed_iod_keeps_all_stable_writes() {
    let dir = tempfile::tempdir().unwrap();
    format_store(&iod::Local::new(dir.path().join("store")), iod::Features::default());
    let store = dir.path().join("store");
    let data = pattern(200_000, 1);
    let mut before = None;
    for round in 0..3u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "start_stop::iod_process_for_the_kill_test", "--nocapture"])
            .env(TO_BE_KILLED, &store)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let port = store.join("port");
        wait_until(|| port.exists());
        let address = ("127.0.0.1", fs::read_to_string(&port).unwrap().parse().unwrap());
        fs::remove_file(&port).unwrap();
        let mut client = Client::new(TcpStream::connect(address).unwrap());
        let verifier = client.hello(true).unwrap().verifier;
        assert_ne!(before.replace(verifier), Some(verifier));
        for old in 0..round {
            assert_eq!(client.read(old + 1, 0, 200_000).unwrap(), data);
        }
        client.write_list(round + 1, true, &[(0, &data)]).unwrap();
        // The test kills the iod while the client has sent only a part of a request.
        let args = client.write_args(100 + round, false, &[(0, &data)]);
        let record = mark(client.message(Procedure::Write as u32, &args)).to_bytes();
        client.stream.write_all(&record[..150_000]).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(client.is_closed());
    }
    let running = Iod::start(config(&store)).unwrap();
    assert_eq!(running.store().iod(), running.iod());
}

#[test]
fn debug_output_of_the_configuration_hides_the_secret() {
    let config = iod::Config::new("/d", FSID, Key::new([0x77; 32]), vec![]);
    let text = format!("{config:?}");
    assert!(text.contains("[secret]") && !text.contains("119") && !text.contains("7777"), "{text}");
}

#[test]
fn objects_with_invalid_heads_are_corrupt_and_never_overwritten() {
    let mut server = Server::new();
    let mut client = server.client();
    for id in 1..=4 {
        client.write_list(id, true, &[(0, b"precious")]).unwrap();
    }
    drop(server.running.take());
    let dir = server.store_dir();
    let path = |id: u64| dir.join(format!("objects/00/00/{id:016x}"));
    let spoil = |id: u64, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = fs::read(path(id)).unwrap();
        change(&mut bytes);
        fs::write(path(id), &bytes).unwrap();
        bytes
    };
    let spoiled = [
        spoil(1, &|bytes| bytes[20] ^= 1),
        spoil(2, &|bytes| bytes.truncate(100)),
        spoil(3, &|bytes| bytes[11] = 9),
        fs::read(path(4)).unwrap(),
    ];
    // The file of object 5 is a copy of the file of object 4, so its header names object 4.
    fs::copy(path(4), path(5)).unwrap();
    server.running = Some(Iod::start(config(&server.store_dir())).unwrap());
    let mut client = server.client();
    for id in [1, 2, 3, 5] {
        assert_eq!(client.read(id, 0, 8).unwrap_err().status(), Status::Corrupt, "{id}");
        assert_eq!(client.write(id, 0, b"over").unwrap_err().status(), Status::Corrupt, "{id}");
        assert_eq!(client.truncate(id, 0).unwrap_err().status(), Status::Corrupt, "{id}");
        assert_eq!(client.fence(id, 9).unwrap_err().status(), Status::Corrupt, "{id}");
    }
    assert_eq!(client.read(4, 0, 8).unwrap(), b"precious");
    for (id, bytes) in (1..).zip(&spoiled) {
        assert_eq!(&fs::read(path(id)).unwrap(), bytes, "{id}");
    }
    let listed = client.list(0, 100).unwrap().entries;
    let listed: Vec<_> = listed.iter().map(|e| (e.object.file.0, e.head)).collect();
    let states = [HeadState::Damaged, HeadState::Damaged, HeadState::Newer, HeadState::Own, HeadState::Foreign];
    assert_eq!(listed, (1..).zip(states).collect::<Vec<_>>());
    // Only REMOVE makes an object with a damaged file usable again. REMOVE keeps an object file whose header has a
    // newer version or names another object.
    client.remove(1).unwrap();
    client.write(1, 0, b"anew").unwrap();
    for id in [3, 5] {
        client.remove(id).unwrap();
        assert!(path(id).exists());
        assert_eq!(client.read(id, 0, 8).unwrap_err().status(), Status::Corrupt, "{id}");
    }
    assert_eq!(server.counter("objects.left"), 2);
}

#[test]
fn stores_of_builds_without_streams_open_as_they_are() {
    for sums in [false, true] {
        let mut server = Server::new();
        drop(server.running.take());
        let dir = server.store_dir();
        let hex = |text: &str| -> Vec<u8> {
            (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
        };
        let ids = [FSID.0, IOD.0].concat();
        let sealed = |mut bytes: Vec<u8>| {
            bytes.extend(crc32c(&bytes).to_be_bytes());
            bytes
        };
        let version = 1 + u8::from(sums);
        let format = [hex("57454952494f4400000000"), vec![version], ids, hex("0000000060000000")].concat();
        fs::write(dir.join("FORMAT"), sealed(format)).unwrap();
        let head = [hex("574549524f424a00000000"), vec![version], hex("00000001"), FSID.0.to_vec()].concat();
        let nonce: &[u8] = if sums { b"anonce!!" } else { b"" };
        let mut object = sealed([&head[..], &hex("00000000000000070000000060000000"), nonce].concat());
        object.resize(4096, 0);
        object.extend(b"of an older build");
        fs::create_dir_all(dir.join("objects/00/00")).unwrap();
        fs::write(dir.join("objects/00/00/0000000000000007"), &object).unwrap();
        let format = fs::read(dir.join("FORMAT")).unwrap();
        server.running = Some(Iod::start(config(&dir)).unwrap());
        let mut client = server.client();
        assert_eq!(client.size(7).unwrap().size, 17);
        assert_eq!(client.read(7, 0, 99).unwrap(), b"of an older build");
        client.write_list(7, true, &[(0, b"ON")]).unwrap();
        client.write_list(8, true, &[(0, b"new")]).unwrap();
        assert_eq!(fs::read(dir.join("FORMAT")).unwrap(), format, "stream 0 alone: an older build may open it again");
        assert_eq!(fs::read(dir.join("objects/00/00/0000000000000008")).unwrap()[11], version);
        let (object, expires) = (ObjectId::new(FileId(7), 3), client.cap(7, ALL).expires);
        let cap = key().sign_capability(FSID, object, Generation(1), ALL, expires, SESSION);
        let truncated: TruncateReply = client.call(Procedure::Truncate, &TruncateArgs { cap, size: 5 }).unwrap();
        assert_eq!((truncated.size, client.size(7).unwrap().size), (5, 17));
        assert_eq!(fs::read(dir.join("FORMAT")).unwrap()[11], version + 2);
        assert_eq!(fs::read(dir.join("objects/00/00/0000000000000007-00000003")).unwrap()[11], version + 2);
    }
}

#[test]
fn remains_of_uncommitted_objects_count_as_missing_objects() {
    let mut server = Server::new();
    server.client().write_list(1, true, &[(0, b"committed")]).unwrap();
    drop(server.running.take());
    let dir = server.store_dir();
    let path = |id: u64| dir.join(format!("objects/00/00/{id:016x}"));
    fs::write(path(2), b"").unwrap();
    fs::write(path(3), vec![0; 4096]).unwrap();
    fs::write(path(4), vec![0; 100]).unwrap();
    fs::write(path(5), [vec![0; 4096], b"data whose head was lost".to_vec()].concat()).unwrap();
    server.running = Some(Iod::start(config(&server.store_dir())).unwrap());
    let mut client = server.client();
    assert_eq!(client.list(0, 10).unwrap().entries.len(), 1);
    for id in 2..=5 {
        assert_eq!(client.size(id).unwrap().size, 0);
        assert_eq!(client.read(id, 0, 50).unwrap(), b"");
        client.write_list(id, true, &[(1, b"anew")]).unwrap();
        assert_eq!(client.read(id, 0, 50).unwrap(), b"\0anew");
    }
    assert_eq!(client.list(0, 10).unwrap().entries.len(), 5);
}
