# The API, for servers that load a file: mod_wsgi. Others name the object: tenure.cmd.wsgi:application
from tenure.cmd.wsgi import application as application
