//! Sections of the configuration file: options of a command, by their long names. They are the defaults of the options, so
//! the command line and the environment come first.

use clap::{Arg, ArgAction, Command};
use toml::{Table, Value};

use super::{Config, Found};
use crate::errors::{Failure, Result};

/// The commands that have a section.
const COMMANDS: [&str; 2] = ["serve", "work"];
/// Most options of a section, and most values of an option.
const VALUES_MAX: usize = 100;

/// An option of the file: the id of its argument, and its values as the command line would have them.
struct Given {
    id: String,
    key: String,
    values: Vec<String>,
}

impl Config {
    fn section(&self, name: &str) -> &Table {
        match name {
            "serve" => &self.serve,
            "work" => &self.work,
            _ => &self.globals,
        }
    }
}

/// Makes the values of a file the defaults of a program's options.
///
/// # Errors
/// For an option that the command does not have, and a value that it does not accept.
pub(crate) fn applied(mut program: Command, found: &Found) -> Result<Command> {
    let given = options(&program, None, found)?;
    program = given.into_iter().fold(program, with_default);
    for name in COMMANDS {
        let Some(command) = program.find_subcommand(name) else { continue };
        let given = options(command, Some(name), found)?;
        program = program.mut_subcommand(name, |command| given.into_iter().fold(command, with_default));
    }
    Ok(program)
}

fn with_default(command: Command, given: Given) -> Command {
    let Given { id, values, .. } = given;
    command.mut_arg(id, |arg| arg.default_values(values).required(false))
}

/// Reads a section; `None` for the options of all commands, which are outside of the sections.
fn options(command: &Command, name: Option<&str>, found: &Found) -> Result<Vec<Given>> {
    let table = found.config.section(name.unwrap_or_default());
    let path = |key: &str| name.map_or_else(|| key.to_owned(), |name| format!("{name}.{key}"));
    let wrong = |key: &str, why: String| {
        let message = format!("{} is not a valid configuration", found.file.display());
        Failure::invalid(message).why(format!("{}: {why}", path(key)))
    };
    // A build without the command reads its section all the same.
    if name == Some("serve") && !cfg!(feature = "serve") {
        return Ok(Vec::new());
    }
    let mut all = Vec::new();
    for (key, value) in table {
        let is_it = |arg: &&Arg| {
            let long = arg.get_long().map(|long| long.replace('-', "_"));
            long.as_ref() == Some(key) && arg.is_global_set() == name.is_none()
        };
        let Some(arg) = command.get_arguments().find(is_it) else {
            return Err(wrong(key, "there is no such option".to_owned())
                .hint(format!("punctual {} --help    lists them", name.unwrap_or("help"))));
        };
        let values = values(arg, value).map_err(|why| wrong(key, why))?;
        if VALUES_MAX < all.len() {
            return Err(wrong(key, format!("there are more than {VALUES_MAX} options")));
        }
        all.push(Given { id: arg.get_id().to_string(), key: key.clone(), values });
    }
    // Each value is read as on the command line, so that a wrong one is told with the place where it stands.
    for given in &all {
        let words = given.values.iter().map(|value| {
            let long = given.key.replace('_', "-");
            if value == "true" && is_flag(command, &given.id) {
                format!("--{long}")
            } else {
                format!("--{long}={value}")
            }
        });
        let reader = command.clone().no_binary_name(true).subcommand_required(false);
        // Others may be on the command line.
        let reader = reader.mut_args(|arg| arg.required(false));
        if let Err(error) = reader.try_get_matches_from(words)
            && matches!(
                error.kind(),
                clap::error::ErrorKind::ValueValidation | clap::error::ErrorKind::InvalidValue
            )
        {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            return Err(wrong(&given.key, first.trim_start_matches("error: ").to_owned()));
        }
    }
    Ok(all)
}

fn is_flag(command: &Command, id: &str) -> bool {
    command.get_arguments().any(|arg| arg.get_id() == id && matches!(arg.get_action(), ArgAction::SetTrue))
}

/// Returns the values as the command line would have them.
fn values(arg: &Arg, value: &Value) -> std::result::Result<Vec<String>, String> {
    let one = |value: &Value| match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Boolean(_) | Value::Float(_) | Value::Datetime(_) | Value::Array(_) | Value::Table(_) => {
            Err("write a text or a number".to_owned())
        }
    };
    match (arg.get_action(), value) {
        (ArgAction::SetTrue, Value::Boolean(is_on)) => Ok(vec![is_on.to_string()]),
        (ArgAction::SetTrue, _) => Err("write true or false".to_owned()),
        (ArgAction::Append, Value::Array(list)) if list.len() <= VALUES_MAX => list.iter().map(one).collect(),
        (ArgAction::Append, Value::Array(_)) => Err(format!("there are more than {VALUES_MAX} values")),
        (_, value) => Ok(vec![one(value)?]),
    }
}
