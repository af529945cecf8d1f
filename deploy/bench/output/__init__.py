"""What people and programs read: result files, tables, CSV, the HTML report."""
