//! `weir status`: how a cluster stands, asked of its mgr.

use crate::failure::{Exit, Failure, Outcome, UNREACHABLE};
use crate::session::{Connect, runtime};
use crate::show;
use net::Address;
use net::rpc::{Connection, Limits, NoService};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;
use wire::admin::{PROGRAM, STATUS, Status, VERSION, Value};
use wire::rpc::Auth;
use xdr::{Segments, Xdr};

/// Show how a cluster stands: daemons, versions, capacity, counters
#[derive(clap::Args)]
#[command(after_help = "Examples:
  weir status
  weir status --json weir://host | jq .")]
pub struct Args {
    /// The file system; without it, WEIR_URL
    system: Option<OsString>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Serialize)]
struct JsonGroup<'a> {
    group: &'a str,
    values: BTreeMap<&'a str, JsonValue<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum JsonValue<'a> {
    Number(u64),
    Text(&'a str),
}

/// Asks and shows.
pub fn run(args: Args) -> Outcome {
    let target = args.connect.target_or_base(args.system.as_ref())?;
    let address = Address::Tcp { host: target.host().to_owned(), port: target.port() };
    let runtime = runtime()?;
    let status = runtime.block_on(ask(&address, args.connect.timeout()))?;
    runtime.shutdown_background();
    if args.json {
        let groups: Vec<JsonGroup> = status.groups.iter().map(json_group).collect();
        show::json(&groups)?;
    } else {
        show::raw(text(&status).as_bytes())?;
    }
    Ok(Exit::Done)
}

async fn ask(address: &Address, timeout: Duration) -> Result<Status, Failure> {
    let unreachable = |e: net::Error| Failure { code: Exit::Unreachable, ..Failure::new(e) }.next(UNREACHABLE);
    let limits = Limits::default();
    let connection = Connection::connect(address, Arc::new(NoService), limits, net::Counters::default(), timeout);
    let connection = connection.await.map_err(unreachable)?;
    let call = connection.call(PROGRAM, VERSION, STATUS, &Auth::None, Segments::default(), timeout);
    let mut reply = call.await.map_err(|e| match e {
        net::Error::Refused(refusal) => Failure::new(format!("{address} is no mgr of this version of Weir: {refusal}")),
        other => unreachable(other),
    })?;
    Status::decode(&mut reply.body).map_err(|e| Failure::new(format!("{address}: the answer is malformed: {e}")))
}

fn json_group(group: &wire::admin::Group) -> JsonGroup<'_> {
    let values = group.values.iter().map(|(name, value)| {
        let value = match value {
            Value::Number(n) => JsonValue::Number(*n),
            Value::Text(text) => JsonValue::Text(text),
        };
        (name.as_str(), value)
    });
    JsonGroup { group: &group.name, values: values.collect() }
}

fn text(status: &Status) -> String {
    let mut out = String::new();
    for group in &status.groups {
        out += &format!("{}\n", show::path(group.name.as_bytes()));
        let width = group.values.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        for (name, value) in &group.values {
            let value = match value {
                // A size is hard to read in bytes; a count is not.
                Value::Number(n) if name.contains("bytes") => format!("{n} ({})", show::size(*n)),
                Value::Number(n) => n.to_string(),
                Value::Text(text) => show::path(text.as_bytes()),
            };
            out += &format!("  {:<width$}  {value}\n", show::path(name.as_bytes()));
        }
    }
    out
}
